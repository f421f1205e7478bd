"""Bit-exact verification of optimized kernels against an independent eager reference."""

__version__ = "0.1.0"
