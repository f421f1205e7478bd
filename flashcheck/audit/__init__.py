"""What the compiler makes of a subject's kernels, and the arithmetic that this predicts."""
