"""The settings of the arithmetic's switches, smallest set first, and the names of their causes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from flashcheck.reference.arithmetic import PAPER, Arithmetic, NanAbsmax, Rounding

ABSMAX_FLOOR = 1e-12
"""The floor that kernels are known to put under a group's absmax."""


class Switch(str, Enum):
    """One legitimate way to differ from the literal paper; its value is the name of a cause."""

    ROUNDING_TIE = "rounding_tie"
    FUSED_MULTIPLY_ADD = "fused_multiply_add"
    RECIPROCAL_DIVISION = "reciprocal_division"
    ABSMAX_FLOOR = "absmax_floor"
    NAN_ABSMAX = "nan_absmax"


_VALUES: dict[Switch, list[dict[str, Any]]] = {
    Switch.ROUNDING_TIE: [{"rounding": Rounding.HALF_AWAY}, {"rounding": Rounding.HALF_UP}],
    Switch.FUSED_MULTIPLY_ADD: [{"fused_multiply_add": True}],
    Switch.RECIPROCAL_DIVISION: [{"reciprocal_division": True}],
    Switch.ABSMAX_FLOOR: [{"absmax_floor": ABSMAX_FLOOR}],
    Switch.NAN_ABSMAX: [{"nan_absmax": NanAbsmax.IGNORE}],
}


@dataclass(frozen=True)
class Setting:
    """Some switches set, and the arithmetic they make."""

    switches: tuple[Switch, ...]
    arithmetic: Arithmetic

    @property
    def cause(self) -> str:
        return "+".join(switch.value for switch in self.switches)

    def words(self) -> str:
        """As a person says it: ``half away + fused multiply-add``."""
        if not self.switches:
            return "the paper's arithmetic"
        words = {
            Switch.ROUNDING_TIE: self.arithmetic.rounding.value.replace("_", " "),
            Switch.FUSED_MULTIPLY_ADD: "fused multiply-add",
            Switch.RECIPROCAL_DIVISION: "multiplication by the reciprocal",
            Switch.ABSMAX_FLOOR: f"an absmax floor of {self.arithmetic.absmax_floor:g}",
            Switch.NAN_ABSMAX: "NaN dropped from the absmax",
        }
        return " + ".join(words[switch] for switch in self.switches)


LITERAL = Setting((), PAPER)


def settings(switches: Sequence[Switch]) -> list[Setting]:
    """Every setting of some switches but the literal one, fewest switches first."""
    made = []
    for size in range(1, len(switches) + 1):
        for chosen in itertools.combinations(switches, size):
            for values in itertools.product(*(_VALUES[switch] for switch in chosen)):
                changes = {key: value for part in values for key, value in part.items()}
                made.append(Setting(chosen, replace(PAPER, **changes)))
    return made
