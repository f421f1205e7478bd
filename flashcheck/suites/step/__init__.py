"""Suites of kind ``step``: the optimizer steps that training runs."""
