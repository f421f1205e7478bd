"""How fast a run goes, in its progress bar."""

from __future__ import annotations

from rich.progress import ProgressColumn, Task
from rich.text import Text

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


class RateColumn(ProgressColumn):
    """Elements a second, of late."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("-/s")
        divisor, unit = next((some for some in _UNITS if speed >= some[0]), _UNITS[-1])
        return Text(f"{speed / divisor:.3g} {unit} elements/s")
