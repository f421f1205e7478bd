"""What each metric and each cause means, how it is come by, and where the paper has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flashcheck.errors import UsageError, did_you_mean
from flashcheck.measures import (
    CONTRACTS,
    CodeMetrics,
    Measures,
    QuantizationMetrics,
    SplittingMetrics,
    StepMetrics,
    TrajectoryMetrics,
    ValueMetrics,
)


@dataclass(frozen=True)
class Entry:
    """One term.

    Attributes:
        kind: ``metric``, ``cause`` or ``contract``.
        of: what it is a figure of.
        meaning: in a sentence.
        how: it is computed, or found.
        source: the algorithm of the paper, and the file that has it here.
    """

    term: str
    kind: str
    of: str
    meaning: str
    how: str
    source: str


_PAPER = "arXiv 2602.23349"
_MODELS: dict[type[Measures], tuple[str, str]] = {
    QuantizationMetrics: (
        "a tensor that is quantized",
        f"Algorithms 2 and 3 of {_PAPER}; flashcheck/reference/quantization.py",
    ),
    SplittingMetrics: (
        "weights that are split and put together again",
        f"Algorithm 1 of {_PAPER}; flashcheck/reference/splitting.py",
    ),
    ValueMetrics: (
        "values made of given codes, every pair of them",
        f"the inverses in Algorithms 1 to 3 of {_PAPER}; flashcheck/reference",
    ),
    CodeMetrics: (
        "every value that a group with an absmax of 1 may hold",
        f"Algorithms 2 and 3 of {_PAPER}; flashcheck/reference/quantization.py",
    ),
    StepMetrics: (
        "one optimizer step",
        f"the optimizers of {_PAPER} between reading and storing by Algorithms 1 to 3; "
        "flashcheck/reference/optimizers.py",
    ),
    TrajectoryMetrics: (
        "optimizer steps one after the other",
        f"the optimizers of {_PAPER}; flashcheck/reference/optimizers.py",
    ),
}

_SWITCH = "the reference, run with this switch set, gives the subject's very bits"
_SWITCHES = "flashcheck/reference/arithmetic.py"
_BOUNDS = "flashcheck/compare/bounds.py, and enclosure.py for a step"
_CAUSES = [
    Entry(
        "rounding_tie", "cause", "a code",
        "The subject rounds half away from zero, or half up, where the reference rounds to even.",
        _SWITCH, f"Round in Algorithms 1 to 3 of {_PAPER} leaves it open; {_SWITCHES}",
    ),
    Entry(
        "fused_multiply_add", "cause", "a sum of a product",
        "The subject does not round a product before it adds to it.",
        _SWITCH, f"no rounding is fixed in {_PAPER}; {_SWITCHES}",
    ),
    Entry(
        "reciprocal_division", "cause", "a division by N",
        "The subject multiplies by the float32 nearest 1/N where the paper divides by N.",
        _SWITCH, f"the inverses in Algorithms 1 to 3 of {_PAPER}; {_SWITCHES}",
    ),
    Entry(
        "absmax_floor", "cause", "a group's divisor",
        "The subject divides by no less than 1e-12.",
        _SWITCH, f"Algorithms 2 and 3 of {_PAPER} divide by the absmax; {_SWITCHES}",
    ),
    Entry(
        "nan_absmax", "cause", "a group's absmax",
        "The subject drops a NaN from the maximum.",
        _SWITCH, f"max in Algorithms 2 and 3 of {_PAPER}; {_SWITCHES}",
    ),
    Entry(
        "float32_scalars", "cause", "an optimizer step",
        "The subject rounds beta to float32 before it computes 1 - beta and beta^t, and rounds "
        "beta^t and lr decay before it takes them from 1.",
        _SWITCH, f"the optimizers of {_PAPER} have real numbers; {_SWITCHES}",
    ),
    Entry(
        "distributed_update", "cause", "an optimizer step",
        "The subject multiplies learning rate and decay out: theta (1 - lr lambda) - (lr m) / d.",
        _SWITCH, f"{_PAPER} has theta - lr (m / d + lambda theta); {_SWITCHES}",
    ),
    Entry(
        "rounding_boundary", "cause", "a code, a scale, or a narrow number",
        "No switch gives the bits, but the exact number is so near the boundary between both that "
        "operations as exact as the suite's tolerances may fall on either side.",
        "a derived error bound around the exact number reaches across the boundary", _BOUNDS,
    ),
    Entry(
        "ulp_bound", "cause", "a float32 value",
        "No switch gives the bits, but the value is within the bound that the suite's tolerances "
        "prove for it.",
        "a derived error bound around the exact number reaches the value", _BOUNDS,
    ),
    Entry(
        "propagated", "cause", "what follows from something else",
        "It is right for the subject's own code, or for a number within its own bound, which "
        "differs and has a cause of its own.",
        "the reference, given the subject's own, agrees", "flashcheck/compare",
    ),
    Entry(
        "strides_ignored", "cause", "a tensor that is not contiguous",
        "The subject read its input's storage in the order of memory: a fault, and a known one.",
        "the reference, given the storage in that order, agrees",
        "flashcheck/compare/quantization.py",
    ),
    Entry(
        "outside_domain", "cause", "an input that is not finite",
        "A code of a number that is not finite, or rounds to infinity: the paper defines none.",
        "the input, or its narrow weight, is not finite", f"{_PAPER} defines codes of finite ones",
    ),
    Entry(
        "unexplained", "cause", "anything",
        "No switch gives the subject's bits and no bound allows them: wrong, until somebody finds "
        "out why. Every suite demands that there is none.",
        "what is left when all settings and bounds have been tried",
        "flashcheck/compare/attribution.py",
    ),
]  # fmt: skip

_CONTRACT_WORDS = {
    "inputs_unchanged": ("The subject leaves its inputs as they were.", "their bits, after a call"),
    "same_bits_twice": ("The subject gives the same bits twice.", "a second call, compared"),
    "same_in_every_configuration": (
        "Every launch configuration gives the same bits.",
        "with --autotune all, each configuration's outputs, compared with the pinned one's",
    ),
    "empty_input": ("No elements give no elements.", "a call with an empty tensor"),
}


def entries() -> Iterator[Entry]:
    """Every term, metrics first; a metric of several kinds of case has an entry for each."""
    for model, (of, source) in _MODELS.items():
        how = " ".join((model.__doc__ or "").split())
        for name, field in model.model_fields.items():
            words = field.description or ""
            meaning = f"{words[:1].upper()}{words[1:]}."
            yield Entry(name, "metric", of, meaning, how, source)
    yield from _CAUSES
    for name in CONTRACTS:
        meaning, how = _CONTRACT_WORDS[name]
        where = "flashcheck/suites/calls.py"
        yield Entry(name, "contract", "the calls of a case", meaning, how, where)


def look_up(term: str) -> list[Entry]:
    """The entries of a term; of several causes joined by ``+``, those of each.

    Raises:
        UsageError: one is unknown, with the near one.
    """
    every = list(entries())
    found = []
    for part in term.split("+"):
        here = [entry for entry in every if entry.term == part]
        if not here:
            names = {entry.term for entry in every}
            raise UsageError(f"explain {part}: unknown; {did_you_mean(part, names)}")
        found += here
    return found
