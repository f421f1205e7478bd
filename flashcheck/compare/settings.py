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
    FLOAT32_SCALARS = "float32_scalars"
    DISTRIBUTED_UPDATE = "distributed_update"


STEP_ONLY = (Switch.FLOAT32_SCALARS, Switch.DISTRIBUTED_UPDATE)
"""Switches of an optimizer step: no other function has what they change."""


_VALUES: dict[Switch, list[dict[str, Any]]] = {
    Switch.ROUNDING_TIE: [{"rounding": Rounding.HALF_AWAY}, {"rounding": Rounding.HALF_UP}],
    Switch.FUSED_MULTIPLY_ADD: [{"fused_multiply_add": True}],
    Switch.RECIPROCAL_DIVISION: [{"reciprocal_division": True}],
    Switch.ABSMAX_FLOOR: [{"absmax_floor": ABSMAX_FLOOR}],
    Switch.NAN_ABSMAX: [{"nan_absmax": NanAbsmax.IGNORE}],
    Switch.FLOAT32_SCALARS: [{"float32_scalars": True}],
    Switch.DISTRIBUTED_UPDATE: [{"distributed_update": True}],
}
_STEP_VALUES = {
    **_VALUES,
    # A step rounds codes and correction codes, and a kernel may round each in a way of its own.
    Switch.ROUNDING_TIE: [
        *_VALUES[Switch.ROUNDING_TIE],
        {"rounding": Rounding.HALF_UP, "correction_rounding": Rounding.HALF_AWAY},
    ],
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
        rounding = self.arithmetic.rounding.value
        if self.arithmetic.correction_rounding:
            rounding += f", corrections {self.arithmetic.correction_rounding.value}"
        words = {
            Switch.ROUNDING_TIE: rounding.replace("_", " "),
            Switch.FUSED_MULTIPLY_ADD: "fused multiply-add",
            Switch.RECIPROCAL_DIVISION: "multiplication by the reciprocal",
            Switch.ABSMAX_FLOOR: f"an absmax floor of {self.arithmetic.absmax_floor:g}",
            Switch.NAN_ABSMAX: "NaN dropped from the absmax",
            Switch.FLOAT32_SCALARS: "scalars in float32",
            Switch.DISTRIBUTED_UPDATE: "a distributed update",
        }
        return " + ".join(words[switch] for switch in self.switches)


LITERAL = Setting((), PAPER)


def settings(switches: Sequence[Switch], *, step: bool = False) -> list[Setting]:
    """Every setting of some switches but the literal one, fewest switches first.

    Args:
        step: of an optimizer step, which rounds two kinds of codes.
    """
    values_of, made = _STEP_VALUES if step else _VALUES, []
    for size in range(1, len(switches) + 1):
        for chosen in itertools.combinations(switches, size):
            for values in itertools.product(*(values_of[switch] for switch in chosen)):
                changes = {key: value for part in values for key, value in part.items()}
                made.append(Setting(chosen, replace(PAPER, **changes)))
    return made
