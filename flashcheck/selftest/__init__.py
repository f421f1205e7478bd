"""Proof that faulty kernels are caught and correct ones are not flagged."""
