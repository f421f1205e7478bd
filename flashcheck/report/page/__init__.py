"""Reports as one HTML file that needs nothing else, and no network."""
