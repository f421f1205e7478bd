"""In-tree Triton kernels, written from the paper's algorithms in correctly rounded operations.

They are the control: what they share with the authors' kernels is the machine and the compiler;
what differs is arithmetic. Launch them with ``enable_fp_fusion=False``.
"""
