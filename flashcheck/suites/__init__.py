"""The suites: each kind makes cases from its configuration, runs them, and measures them."""
