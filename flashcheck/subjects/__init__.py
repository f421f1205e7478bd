"""What is tested. Only modules here import an implementation, after the backend is chosen."""
