"""An explanation of mismatches as the report keeps it."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum

import torch

from flashcheck.compare.attribution import UNEXPLAINED, Best, Explanation, Offender
from flashcheck.compare.metrics import MagnitudeErrors
from flashcheck.reference.arithmetic import Arithmetic
from flashcheck.report import models


def record(
    explanation: Explanation, best: Best, *, outputs: int, distances: dict[str, dict[str, int]]
) -> models.Mismatches:
    """Turn tensors into text, and sum up in a sentence.

    Args:
        outputs: how many outputs were compared.
        distances: of each output, how far apart what differs is.
    """
    return record_counts(
        explanation.by_output,
        best,
        outputs=outputs,
        worst=[offender_record(offender) for offender in explanation.worst],
        margin=[
            models.Margin(output=m.output, largest_ulp=m.largest_ulp, bound_ulp=m.bound_ulp)
            for m in explanation.margins
        ],
        distances={name: found for name, found in distances.items() if found},
    )


def record_counts(
    by_output: dict[str, dict[str, int]],
    best: Best,
    *,
    outputs: int,
    worst: list[models.Offender],
    margin: list[models.Margin],
    distances: dict[str, dict[str, int]] | None = None,
    scope: str | None = None,
) -> models.Mismatches:
    """The same of counts, wherever they are from.

    Args:
        scope: the whole domain that they are of, about which something is then proved.
    """
    by_cause = Explanation(by_output=by_output).by_cause()
    total = sum(by_cause.values())
    return models.Mismatches(
        total=total,
        outputs=outputs,
        by_cause=by_cause,
        by_output=by_output,
        best_arithmetic=models.BestArithmetic(
            arithmetic=arithmetic_record(best.setting.arithmetic),
            words=best.setting.words(),
            mismatches=best.left,
            equally_good=[setting.words() for setting in best.equals],
        ),
        margin=margin,
        worst=worst,
        distances=distances or {},
        sentence=_sentence(by_cause.get(UNEXPLAINED, 0), best, outputs, scope),
    )


def error_records(errors: MagnitudeErrors) -> list[models.ErrorAt]:
    """Means by magnitude, as the report keeps them."""
    return [
        models.ErrorAt(exponent=exponent, n=n, subject=subject, reference=reference)
        for exponent, n, subject, reference in errors.means()
    ]


def arithmetic_record(arithmetic: Arithmetic) -> dict[str, str | bool | float]:
    """The switches by name, as JSON has them; those of an optimizer step only where set."""
    return {
        name: value.value if isinstance(value, Enum) else value
        for name, value in asdict(arithmetic).items()
        if name not in _OF_A_STEP or value
    }


_OF_A_STEP = ("float32_scalars", "distributed_update", "correction_rounding")


def unexplained(explanation: Explanation) -> int:
    """How many mismatches have no cause."""
    return explanation.by_cause().get(UNEXPLAINED, 0)


def _sentence(unexplained: int, best: Best, outputs: int, scope: str | None) -> str:
    words = best.setting.words()
    if best.equals:
        words += f" (or {', or '.join(setting.words() for setting in best.equals)})"
    proved = f"proved over {scope}: " if scope and not unexplained else ""
    if not best.left:
        return f"{proved}bit-equal under {words}"
    sentence = f"{proved}{best.left:,} of {outputs:,} outputs differ under {words}"
    left = f"{unexplained:,} unexplained" if unexplained else "each has a cause"
    return f"{sentence}; {left}"


def offender_record(offender: Offender) -> models.Offender:
    """A mismatch as the report keeps it."""
    return models.Offender(
        output=offender.output,
        index=offender.index,
        input=", ".join(_decimal(each) for each in offender.input),
        input_bits=", ".join(_bits(each) for each in offender.input),
        subject=_decimal(offender.subject),
        subject_bits=_bits(offender.subject),
        reference=_decimal(offender.reference),
        reference_bits=_bits(offender.reference),
        distance=offender.distance,
        stage=offender.stage,
        cause=offender.cause,
    )


def _decimal(value: torch.Tensor) -> str:
    """Enough digits to tell neighbours apart."""
    return f"{value.item():.9g}" if value.is_floating_point() else str(value.item())


def _bits(value: torch.Tensor) -> str:
    """As hexadecimal, most significant digit first."""
    data = value.reshape(1).contiguous().view(torch.uint8).tolist()
    return "0x" + bytes(reversed(data)).hex()
