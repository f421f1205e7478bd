"""Suites of kind ``exhaustive``: every input of every function, in chunks that add up."""
