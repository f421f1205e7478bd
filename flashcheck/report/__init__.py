"""The report: its models, its file, and one renderer a format."""
