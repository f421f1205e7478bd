"""The machine a report is from."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

from flashcheck.report.models import Environment, Shim
from flashcheck.subjects import base


def collect(subject: base.Subject, shims: Sequence[base.Shim]) -> Environment:
    """Describe this machine as the subject's backend uses it."""
    cuda = subject.backend == base.Backend.CUDA.value
    major_minor = torch.cuda.get_device_capability() if cuda else None
    return Environment(
        python=platform.python_version(),
        platform=platform_name(),
        cpu=cpu_name(),
        torch=torch.__version__,
        triton=package_version("triton"),
        numpy=np.__version__,
        backend=subject.backend,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        compute_capability=".".join(map(str, major_minor)) if major_minor else None,
        driver=driver_version() if cuda else None,
        fp_fusion=fp_fusion() if cuda else None,
        shims=[Shim(name=s.name, repairs=s.repairs, checked=s.checked) for s in shims],
    )


def package_version(name: str) -> str | None:
    """Of an installed distribution; none if it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def platform_name() -> str:
    """Operating system, architecture and C library: what a binary depends on."""
    libc = " ".join(part for part in platform.libc_ver() if part)
    return ", ".join(part for part in (f"{platform.system()} {platform.machine()}", libc) if part)


def cpu_name() -> str:
    """The processor's name as the kernel gives it, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def driver_version() -> str | None:
    """Of the NVIDIA kernel driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    words = text.splitlines()[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def fp_fusion() -> bool:
    """Whether Triton contracts a product and a sum to one fused multiply-add by default."""
    off = {"0", "false", "off", "no", "n"}
    return os.environ.get("TRITON_DEFAULT_FP_FUSION", "1").lower() not in off


def command() -> list[str]:
    """The command line, its program by its name alone: no path of this machine."""
    return ["flashcheck", *sys.argv[1:]]
