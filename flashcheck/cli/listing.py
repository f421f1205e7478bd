"""``flashcheck list``."""

from __future__ import annotations

from flashcheck.cli.common import a_reader_may_go, console, exits


@exits
def list_() -> None:
    """List suites with their cases, and subjects with what can run here and why not."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from flashcheck import catalog
    from flashcheck.config import load, spec_names, tensor_names
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
        lines = []
        if names := tensor_names(config):
            lines.append(f"battery: {', '.join(names)}")
        lines.append(f"spec: {', '.join(spec_names(config))}")
        what = config.description if config.in_all else f"{config.description} (not in 'all')"
        suites.add_row(Text(config.suite), Text(what), Text("\n".join(lines)))

    subjects = Table("subject", "what", "here", box=box.SIMPLE_HEAD, pad_edge=False)
    for entry in registry.listing():
        here = f"version {entry.version}" if entry.version else f"unavailable: {entry.reason}"
        subjects.add_row(entry.name, entry.description, Text(here))

    backends = Table("backend", "here", box=box.SIMPLE_HEAD, pad_edge=False)
    reason = gpu.why_none()
    backends.add_row("cuda", Text(f"unavailable: {reason}" if reason else "available"))
    backends.add_row("interpreter", "available, on the CPU")
    with a_reader_may_go():
        for table in (suites, subjects, backends):
            screen.print(table)
