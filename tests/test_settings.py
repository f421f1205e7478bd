"""The settings of the arithmetic's switches: which there are, in which order, and their names."""

from __future__ import annotations

import itertools
from dataclasses import fields

import pytest

from flashcheck.compare.settings import ABSMAX_FLOOR, LITERAL, Setting, Switch, settings
from flashcheck.reference.arithmetic import PAPER, Arithmetic, NanAbsmax, Rounding

# Written out here, not derived: what each switch is allowed to change.
CHANGES: dict[Switch, list[tuple[str, object]]] = {
    Switch.ROUNDING_TIE: [("rounding", Rounding.HALF_AWAY), ("rounding", Rounding.HALF_UP)],
    Switch.FUSED_MULTIPLY_ADD: [("fused_multiply_add", True)],
    Switch.RECIPROCAL_DIVISION: [("reciprocal_division", True)],
    Switch.ABSMAX_FLOOR: [("absmax_floor", 1e-12)],
    Switch.NAN_ABSMAX: [("nan_absmax", NanAbsmax.IGNORE)],
    Switch.FLOAT32_SCALARS: [("float32_scalars", True)],
    Switch.DISTRIBUTED_UPDATE: [("distributed_update", True)],
}


def changed(arithmetic: Arithmetic) -> dict[str, object]:
    """The fields in which an arithmetic is not the paper's."""
    return {
        field.name: getattr(arithmetic, field.name)
        for field in fields(Arithmetic)
        if getattr(arithmetic, field.name) != getattr(PAPER, field.name)
    }


def test_every_switch_is_a_field_of_the_arithmetic_and_the_other_way_round() -> None:
    assert set(CHANGES) == set(Switch)
    names = {name for values in CHANGES.values() for name, _ in values}
    # How corrections are rounded is no switch of its own, but goes with the rounding of codes.
    assert names == {field.name for field in fields(Arithmetic)} - {"correction_rounding"}
    assert ABSMAX_FLOOR == 1e-12


def test_all_combinations_are_there_once_fewest_switches_first() -> None:
    made = settings(list(Switch))
    # Rounding has three values, each of the others two; the literal one is not a setting.
    assert len(made) == 3 * 2**6 - 1
    assert len({setting.arithmetic for setting in made}) == len(made)
    sizes = [len(setting.switches) for setting in made]
    assert sizes == sorted(sizes)
    assert LITERAL not in made
    assert all(setting.switches for setting in made)


@pytest.mark.parametrize("setting", settings(list(Switch)), ids=lambda s: s.words())
def test_a_setting_changes_what_its_switches_say_and_nothing_else(setting: Setting) -> None:
    possible = [
        dict(values) for values in itertools.product(*(CHANGES[s] for s in setting.switches))
    ]
    assert changed(setting.arithmetic) in possible
    assert setting.cause == "+".join(switch.value for switch in setting.switches)
    assert len(setting.words().split(" + ")) == len(setting.switches)


def test_the_words_are_those_a_person_says() -> None:
    words = {setting.words() for setting in settings(list(Switch)) if len(setting.switches) == 1}
    assert words == {
        "half away",
        "half up",
        "fused multiply-add",
        "multiplication by the reciprocal",
        "an absmax floor of 1e-12",
        "NaN dropped from the absmax",
        "scalars in float32",
        "a distributed update",
    }
    both = settings([Switch.ROUNDING_TIE, Switch.FUSED_MULTIPLY_ADD])
    assert both[-2].words() == "half away + fused multiply-add"
    assert both[-1].words() == "half up + fused multiply-add"
    assert LITERAL.words() == "the paper's arithmetic"
    assert LITERAL.cause == ""


def test_a_step_may_round_its_two_kinds_of_codes_in_two_ways() -> None:
    plain, step = settings([Switch.ROUNDING_TIE]), settings([Switch.ROUNDING_TIE], step=True)
    assert step[:2] == plain
    (both,) = step[2:]
    assert both.arithmetic == Arithmetic(
        rounding=Rounding.HALF_UP, correction_rounding=Rounding.HALF_AWAY
    )
    assert both.words() == "half up, corrections half away"
    assert len(settings(list(Switch), step=True)) == 4 * 2**6 - 1


def test_only_the_switches_asked_for_are_set() -> None:
    assert settings([]) == []
    made = settings([Switch.ABSMAX_FLOOR, Switch.NAN_ABSMAX])
    assert [setting.cause for setting in made] == [
        "absmax_floor",
        "nan_absmax",
        "absmax_floor+nan_absmax",
    ]
