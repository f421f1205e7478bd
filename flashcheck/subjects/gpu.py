"""Whether there is a GPU, asked of the driver, without torch."""

from __future__ import annotations

import ctypes


def why_none() -> str | None:
    """Why no NVIDIA GPU can be used here; none if one can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver is installed"
    if driver.cuInit(0) != 0:
        return "the NVIDIA driver finds no GPU"
    number = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(number)) != 0 or number.value == 0:
        return "the NVIDIA driver finds no GPU"
    return None
