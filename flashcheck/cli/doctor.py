"""``flashcheck doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from flashcheck.cli.common import a_reader_may_go, console, exits, import_torch
from flashcheck.errors import ExitCode, FlashcheckError

if TYPE_CHECKING:
    from rich.table import Table

    from flashcheck.subjects.base import Shim


@exits
def doctor() -> None:
    """Say what this machine can run: versions, GPU, backend, subjects, shims and their check.

    Exits 0 if at least one subject can run here, else 3.
    """
    from rich import box
    from rich.table import Table

    import_torch()
    table = Table("what", "finding", box=box.SIMPLE_HEAD, pad_edge=False)
    _versions(table)
    ready = _backends(table)
    with a_reader_may_go():
        console().print(table)
    sys.exit(ExitCode.OK if ready else ExitCode.UNAVAILABLE)


def _versions(table: Table) -> None:
    import platform

    from flashcheck import __version__
    from flashcheck.environment import cpu_name, package_version, platform_name

    table.add_row("flashcheck", __version__)
    table.add_row("python", f"{platform.python_version()} on {platform_name()}")
    table.add_row("cpu", cpu_name())
    for package in ("torch", "triton", "numpy", "flashoptim"):
        version = package_version(package)
        table.add_row(package, version or f"missing; mend: pip install {package}")


def _backends(table: Table) -> bool:
    """Load each subject on the backend that 'auto' takes; whether any loads."""
    from flashcheck.subjects import backend, gpu, registry
    from flashcheck.subjects.base import Backend

    reason = gpu.why_none()
    mend = "mend, if this machine has one: install its driver, and see what nvidia-smi says"
    table.add_row("gpu", f"{reason}; {mend}" if reason else "found by the driver")
    try:
        chosen = backend.choose("auto")
    except FlashcheckError as error:
        table.add_row("backend", f"none: {error}")
        return False
    found = f"auto takes {chosen.value}"
    if reason is None and chosen is not Backend.CUDA:
        found += (
            ", since this torch has no CUDA or another than the driver; mend: pip install "
            "--force-reinstall torch, of the build that PyTorch's page names for this driver"
        )
    table.add_row("backend", found)
    ready = False
    shims: dict[str, Shim] = {}
    for entry in registry.listing():
        try:
            subject, needed = registry.load(entry.name, "auto")
        except FlashcheckError as error:
            table.add_row(f"subject {entry.name}", f"unavailable: {error}")
            continue
        ready = True
        shims |= {shim.name: shim for shim in needed}
        table.add_row(f"subject {entry.name}", f"{subject.version} is ready")
    for shim in shims.values():
        table.add_row(f"shim {shim.name}", f"{shim.repairs}; checked: {shim.checked}")
    return ready
