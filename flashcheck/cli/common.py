"""What the commands share: consoles, and errors that become one line and an exit code."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec

from flashcheck.errors import ExitCode, FlashcheckError, UsageError, did_you_mean
from flashcheck.report.plain import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

P = ParamSpec("P")


def console(*, stderr: bool = False) -> Console:
    """A console for text that is not markup; 100 columns where there is no terminal."""
    from rich.console import Console

    class Careful(Console):
        """Prints what a report or a subject says as text, whatever it is.

        A reader that has gone is left to :func:`a_reader_may_go`; rich would end the process.
        """

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(
                segment if segment.control else segment._replace(text=visible(segment.text))
                for segment in buffer
            )

    made = Careful(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in made._environ:
        made.width = 100
    return made


def say(text: str) -> None:
    """One line on stderr, never wrapped, so that a message stays one line in a log."""
    line = visible(text).replace("\n", "\\n")
    sys.stderr.write(f"{line}\n")


def one_of(option: str, value: str, known: Sequence[str]) -> None:
    """Refuse a value that an option does not take.

    Raises:
        UsageError: with the near one.
    """
    if value not in known:
        raise UsageError(f"{option} {value or repr(value)}: unknown; {did_you_mean(value, known)}")


def import_torch() -> None:
    """Import torch with Ctrl-C held back until it is done: in the middle it would abort."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        import torch  # noqa: F401
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


@contextmanager
def a_reader_may_go() -> Iterator[None]:
    """Print for a reader who may stop reading, as ``head`` does: then the rest is not printed.

    It changes neither what is still to be done nor the exit code.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Nothing more can be written there, not even what Python flushes when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exits(command: Callable[P, None]) -> Callable[P, None]:
    """Turn the errors of a command into one line on stderr and the right exit code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except FlashcheckError as error:
            say(f"flashcheck: {error}")
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            say("flashcheck: interrupted; nothing half-written was left behind")
            sys.exit(ExitCode.INTERRUPTED)
        except Exception:  # noqa: BLE001 - whatever it is, it has an exit code
            traceback.print_exc()
            say("flashcheck: internal error; please report it with the lines above")
            sys.exit(ExitCode.ERROR)

    return wrapped
