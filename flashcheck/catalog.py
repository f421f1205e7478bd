"""Where suites are found: ``./configs`` first, then those that come with flashcheck."""

from __future__ import annotations

from pathlib import Path

from flashcheck.config import SuiteConfig, load
from flashcheck.errors import UsageError, did_you_mean

_PACKAGE = Path(__file__).parent
_SUFFIXES = (".yaml", ".yml")


def suite_files() -> dict[str, Path]:
    """The suite files by name; a file in ``./configs`` hides a built-in one of its name."""
    found: dict[str, Path] = {}
    for folder in (Path("configs"), _built_in()):
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def find(words: list[str]) -> list[SuiteConfig]:
    """Load the suites that the words of a command line name, each once.

    Args:
        words: names, paths of YAML files, or ``all``, which leaves out what says it is not in it.

    Raises:
        UsageError: a name is unknown, or two files define a suite of one name.
        ConfigError: a file has a fault.
    """
    files = suite_files()
    configs: dict[str, SuiteConfig] = {}
    loaded: dict[Path, SuiteConfig] = {}
    for word in words:
        for path in _paths(word, files):
            config = loaded[path] = loaded.get(path) or load(path)
            if config is configs.get(config.suite) or (word == "all" and not config.in_all):
                continue
            if config.suite in configs:
                raise UsageError(
                    f"{path}: suite: '{config.suite}' is defined by another file of this run too; "
                    "rename one"
                )
            configs[config.suite] = config
    return list(configs.values())


def _paths(word: str, files: dict[str, Path]) -> list[Path]:
    if word == "all":
        return list(files.values())
    if word.endswith(_SUFFIXES) or "/" in word:
        return [Path(word)]
    if word in files:
        return [files[word]]
    raise UsageError(f"suite {word}: unknown; {did_you_mean(word, [*files, 'all'])}")


def _built_in() -> Path:
    """In a wheel the package holds ``configs``; in a checkout it lies beside the package."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"
