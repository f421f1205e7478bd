"""What the commands share: consoles, and errors that become one line and an exit code."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec

from flashcheck.errors import ExitCode, FlashcheckError

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")


def console(*, stderr: bool = False) -> Console:
    """A console for text that is not markup; 100 columns where there is no terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in made._environ:
        made.width = 100
    return made


def say(text: str) -> None:
    """One line on stderr, never wrapped, so that a message stays one line in a log."""
    sys.stderr.write(f"{text}\n")


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
        except BrokenPipeError:
            # The reader of our output has gone, as in 'flashcheck show … | head'.
            sys.stderr.close()
            sys.exit(ExitCode.OK)
        except Exception:  # noqa: BLE001 - whatever it is, it has an exit code
            traceback.print_exc()
            say("flashcheck: internal error; please report it with the lines above")
            sys.exit(ExitCode.ERROR)

    return wrapped
