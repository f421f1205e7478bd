"""The independent eager CPU reference, written from the paper's algorithms alone."""
