"""The subjects by name: built in, of a plugin, or in a file of the user's."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from modulefinder import ModuleFinder
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from flashcheck import __version__
from flashcheck.errors import UnavailableError, UsageError, did_you_mean
from flashcheck.subjects.backend import Requested, choose, prepare
from flashcheck.subjects.base import (
    METHODS,
    Backend,
    Kernel,
    Shim,
    Subject,
    auditable,
    missing_methods,
)

GROUP = "flashcheck.subjects"
"""The entry points of this group are subjects: a name, and a class or factory."""


@dataclass(frozen=True)
class BuiltIn:
    """A subject that comes with flashcheck, imported only when it is run.

    Attributes:
        package: the distribution under test; none where the code is flashcheck's own.
    """

    name: str
    description: str
    module: str
    factory: str
    package: str | None


BUILT_IN = (
    BuiltIn(
        name="flashoptim",
        description="the FlashOptim authors' Triton kernels, by their public functions",
        module="flashcheck.subjects.flashoptim",
        factory="FlashOptim",
        package="flashoptim",
    ),
    BuiltIn(
        name="triton",
        description="flashcheck's own Triton kernels, correctly rounded: the control",
        module="flashcheck.subjects.triton",
        factory="InTree",
        package=None,
    ),
)


@dataclass(frozen=True)
class Availability:
    """A subject as it is listed: its version here, or why it cannot run."""

    name: str
    description: str
    version: str | None
    reason: str | None


def names() -> list[str]:
    """Of all subjects that are built in or plugins; nothing is imported."""
    return [*(entry.name for entry in BUILT_IN), *(point.name for point in _plugins())]


def listing() -> list[Availability]:
    """All subjects by name. Plugins are imported to see whether they can be; built-ins are not."""
    entries = []
    for subject in BUILT_IN:
        missing = [
            package
            for package in ("torch", "triton", subject.package)
            if package and importlib.util.find_spec(package) is None
        ]
        installed = None if missing else _version(subject.package)
        entries.append(
            Availability(
                name=subject.name,
                description=subject.description,
                version=installed,
                reason=f"missing: {', '.join(missing)}" if missing else None,
            )
        )
    for point in _plugins():
        distribution = point.dist
        where = f"plugin {distribution.name}" if distribution else "plugin"
        reason = None
        try:
            point.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything
            reason = _words(error)
        version = distribution.version if distribution and reason is None else None
        entries.append(Availability(point.name, where, version, reason))
    return entries


def _version(package: str | None) -> str:
    return importlib.metadata.version(package) if package else __version__


def check_name(name: str) -> None:
    """Refuse a name that is no subject, before anything runs.

    Raises:
        UsageError: there is no built-in and no plugin of that name.
    """
    if not _is_file(name) and name not in names():
        raise UsageError(
            f"--subject {name}: unknown; {did_you_mean(name, names())} "
            "A file is named as path/to/file.py:CLASS"
        )


def load(name: str, requested: Requested) -> tuple[Subject, Sequence[Shim]]:
    """Choose the backend, make it ready, and import a subject.

    Returns:
        The subject and the interpreter's shims it runs with.

    Raises:
        UsageError: there is no such subject.
        UnavailableError: this machine cannot run it, or it is none.
    """
    check_name(name)
    backend = choose(requested)
    entry = _built_in(name)
    if entry:
        shims = prepare(backend)
        subject = _made_built_in(entry, backend)
        return subject, [*shims, *getattr(subject, "shims", [])]
    # A user's module may hold Triton kernels, which take the interpreter's word at import.
    os.environ["TRITON_INTERPRET"] = "1" if backend is Backend.INTERPRETER else "0"
    had_triton = "triton" in sys.modules
    factory = _factory(name)
    shims = prepare(backend) if "triton" in sys.modules else []
    subject = _made(name, factory, backend)
    # Triton that something else brought in says nothing of a subject that runs without it.
    runs_triton = subject.backend == Backend.INTERPRETER.value or not had_triton
    return subject, shims if runs_triton else []


def adopt(subject: Any, requested: Requested) -> tuple[Subject, Sequence[Shim]]:
    """Make a subject of a class, a factory, or an object that somebody else has imported.

    Returns:
        The subject and the interpreter's shims it runs with.

    Raises:
        UnavailableError: this machine cannot run it, it cannot be made, or it is none.
    """
    backend = choose(requested)
    is_made = not inspect.isclass(subject) and missing_methods(subject, *METHODS) != list(METHODS)
    source = type(subject) if is_made else subject
    shims = prepare(backend) if _imports_triton(source) else []
    name = getattr(source, "__name__", type(source).__name__)
    if is_made:
        return _filled_in(name, subject, source, backend), shims
    return _made(name, subject, backend), shims


def _is_file(name: str) -> bool:
    return name.endswith(".py") or ".py:" in name


def origin(name: str) -> str:
    """Where a subject's code is from, as the report says it."""
    if _built_in(name):
        return "built-in"
    return name if _is_file(name) else "plugin"


def load_kernels(name: str) -> Sequence[Kernel]:
    """The Triton kernels of a subject, for a compiler; no GPU is needed.

    Raises:
        UsageError: there is no such subject.
        UnavailableError: it cannot be imported, or has no kernels to compile.
    """
    check_name(name)
    prepare(Backend.CUDA)
    entry = _built_in(name)
    subject = (
        _made_built_in(entry, Backend.CUDA) if entry else _made(name, _factory(name), Backend.CUDA)
    )
    compiled = auditable(subject)
    if compiled is None:
        raise _unavailable(
            name, "has no method kernels(), so there is nothing to compile; give it one"
        )
    return compiled.kernels()


def _built_in(name: str) -> BuiltIn | None:
    return next((entry for entry in BUILT_IN if entry.name == name), None)


def _made_built_in(entry: BuiltIn, backend: Backend) -> Subject:
    factory = getattr(importlib.import_module(entry.module), entry.factory)
    subject: Subject = factory(backend)
    return subject


def _factory(name: str) -> Callable[..., Any]:
    """The class or factory of a user's file or of a plugin."""
    return _file_factory(name) if _is_file(name) else _plugin_factory(name)


def _plugins() -> list[importlib.metadata.EntryPoint]:
    points = importlib.metadata.entry_points(group=GROUP)
    return [point for point in points if not _built_in(point.name)]


def _plugin_factory(name: str) -> Callable[..., Any]:
    point = next(point for point in _plugins() if point.name == name)
    try:
        factory: Callable[..., Any] = point.load()
    except (Exception, SystemExit) as error:
        raise _unavailable(
            name, f"cannot be imported: {_words(error)}; put that right first"
        ) from error
    return factory


def _file_factory(name: str) -> Callable[..., Any]:
    """The class or factory that ``path/to/file.py:NAME`` names."""
    file, colon, attribute = name.rpartition(":")
    path = Path(file if colon else name)
    if not colon or not attribute:
        raise _unavailable(name, "names no class; say which: path/to/file.py:CLASS")
    if not path.is_file():
        raise _unavailable(name, f"there is no file {path}; name another")
    spec = importlib.util.spec_from_file_location(f"flashcheck_user_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # Known by its name while it runs, as dataclasses and Triton's source look-up expect.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _unavailable(
            name, f"cannot be imported: {_words(error)}; put that right first"
        ) from error
    if not hasattr(module, attribute):
        names = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise _unavailable(name, f"{path} has no '{attribute}'; {did_you_mean(attribute, names)}")
    factory: Callable[..., Any] = getattr(module, attribute)
    return factory


def _made(name: str, factory: Callable[..., Any], backend: Backend) -> Subject:
    """Call a user's class or factory."""
    if not callable(factory):
        raise _unavailable(name, f"is a {type(factory).__name__}, not a class or factory; name one")
    try:
        takes_backend = "backend" in inspect.signature(factory).parameters
        made = factory(backend=backend.value) if takes_backend else factory()
    except (Exception, SystemExit) as error:
        raise _unavailable(
            name, f"cannot be made: {_words(error)}; it is called with nothing, or with backend="
        ) from error
    return _filled_in(name, made, factory, backend)


def _filled_in(name: str, made: Any, factory: Callable[..., Any], backend: Backend) -> Subject:
    """A user's object, with what it does not say of itself; ``factory`` is what its code is of."""
    if missing_methods(made, *METHODS) == list(METHODS):
        raise _unavailable(name, f"has none of the methods {', '.join(METHODS)}; it needs one")
    runs_on = backend if _imports_triton(factory) else Backend.NATIVE
    subject = UserSubject(
        made, default_name=name.rpartition(":")[2], default_backend=runs_on, factory=factory
    )
    if subject.backend not in {known.value for known in Backend}:
        known = ", ".join(known.value for known in Backend)
        raise _unavailable(
            name, f"says that its backend is {subject.backend!r}; say one of {known}"
        )
    return subject


class UserSubject:
    """A user's object, with what it does not say of itself filled in; the rest is its own."""

    def __init__(
        self,
        made: Any,
        *,
        default_name: str,
        default_backend: Backend,
        factory: Callable[..., Any],
    ) -> None:
        self._made = made
        self.name = str(getattr(made, "name", None) or default_name)
        self.version = str(getattr(made, "version", None) or "0")
        self.backend = str(getattr(made, "backend", None) or default_backend.value)
        self.source_sha256 = _source_digest(factory)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._made, attribute)


def _imports_triton(factory: Callable[..., Any]) -> bool:
    """Whether the module that a class or factory is from names Triton, or something of it."""
    for value in vars(inspect.getmodule(factory) or object).values():
        where = getattr(value, "__module__", None) or getattr(value, "__name__", "")
        if str(where).split(".", maxsplit=1)[0] == "triton":
            return True
    return False


def _source_digest(factory: Callable[..., Any]) -> str | None:
    """sha256 of the file that a class or factory is from, and of those beside it that it imports.

    Of a package's module, these are all of the package's that it imports.
    """
    try:
        own = Path(inspect.getfile(factory)).resolve()
        files = sorted({own, *_imported(own, factory.__module__)})
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    except (TypeError, OSError):
        return None


def _imported(file: Path, module: str) -> list[Path]:
    """The Python files beside one that it imports, directly or not; nothing is run."""
    package = module.rpartition(".")[0]
    top = file.parents[package.count(".") + 1] if package else file.parent
    # A version says what was installed beside it, and torch alone has thousands of files.
    others = iter_modules([str(top)]) if package or top in _installed() else ()
    own = package.partition(".")[0]
    finder = ModuleFinder(path=[str(top)], excludes=[m.name for m in others if m.name != own])
    try:
        if package:
            finder.import_hook(module)
        else:
            finder.run_script(str(file))
    except (ImportError, SyntaxError, ValueError):
        return []
    files = [getattr(known, "__file__", None) for known in finder.modules.values()]
    return [Path(file).resolve() for file in files if file and file.endswith(".py")]


def _installed() -> set[Path]:
    """The folders that pip installs into."""
    paths = sysconfig.get_paths()
    return {Path(paths[name]).resolve() for name in ("purelib", "platlib")}


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _unavailable(name: str, why: str) -> UnavailableError:
    return UnavailableError(f"--subject {name}: {why}")
