"""``flashcheck list``."""

from __future__ import annotations

from flashcheck.cli.common import console, exits


@exits
def list_() -> None:
    """List suites with their cases, and subjects with what can run here and why not."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from flashcheck import catalog
    from flashcheck.config import QuantizationConfig, load
    from flashcheck.errors import ConfigError
    from flashcheck.subjects import gpu, registry

    screen = console()
    suites = Table("suite", "what", "cases", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, path in catalog.suite_files().items():
        try:
            config = load(path)
        except ConfigError as error:
            suites.add_row(name, Text(f"cannot be used: {error}"), "")
            continue
        if isinstance(config, QuantizationConfig):
            cases = (
                f"battery: {', '.join(tensor.name for tensor in config.battery)}\n"
                f"spec: {', '.join(spec.name for spec in config.specs)}"
            )
        else:
            cases = f"spec: {', '.join(config.case_names())}"
        suites.add_row(Text(config.suite), Text(config.description), Text(cases))
    screen.print(suites)

    subjects = Table("subject", "what", "here", box=box.SIMPLE_HEAD, pad_edge=False)
    for entry in registry.listing():
        here = f"version {entry.version}" if entry.version else f"unavailable: {entry.reason}"
        subjects.add_row(entry.name, entry.description, Text(here))
    screen.print(subjects)

    backends = Table("backend", "here", box=box.SIMPLE_HEAD, pad_edge=False)
    reason = gpu.why_none()
    backends.add_row("cuda", Text(f"unavailable: {reason}" if reason else "available"))
    backends.add_row("interpreter", "available, on the CPU")
    screen.print(backends)
