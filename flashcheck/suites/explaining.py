"""An explanation of mismatches as the report keeps it."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum

import torch

from flashcheck.compare.attribution import UNEXPLAINED, Best, Explanation, Offender
from flashcheck.reference.arithmetic import Arithmetic
from flashcheck.report import models


def record(explanation: Explanation, best: Best, *, outputs: int) -> models.Mismatches:
    """Turn tensors into text, and sum up in a sentence.

    Args:
        outputs: how many outputs were compared.
    """
    return models.Mismatches(
        total=explanation.total(),
        outputs=outputs,
        by_cause=explanation.by_cause(),
        by_output=explanation.by_output,
        best_arithmetic=models.BestArithmetic(
            arithmetic=arithmetic_record(best.setting.arithmetic),
            words=best.setting.words(),
            mismatches=best.left,
            equally_good=[setting.words() for setting in best.equals],
        ),
        margin=[
            models.Margin(output=m.output, largest_ulp=m.largest_ulp, bound_ulp=m.bound_ulp)
            for m in explanation.margins
        ],
        worst=[_offender(offender) for offender in explanation.worst],
        sentence=_sentence(explanation, best, outputs),
    )


def arithmetic_record(arithmetic: Arithmetic) -> dict[str, str | bool | float]:
    """The switches by name, as JSON has them."""
    return {
        name: value.value if isinstance(value, Enum) else value
        for name, value in asdict(arithmetic).items()
    }


def unexplained(explanation: Explanation) -> int:
    """How many mismatches have no cause."""
    return explanation.by_cause().get(UNEXPLAINED, 0)


def _sentence(explanation: Explanation, best: Best, outputs: int) -> str:
    words = best.setting.words()
    if best.equals:
        words += f" (or {', or '.join(setting.words() for setting in best.equals)})"
    if not best.left:
        return f"bit-equal under {words}"
    sentence = f"{best.left:,} of {outputs:,} outputs differ under {words}"
    left = unexplained(explanation)
    return f"{sentence}; {f'{left:,} unexplained' if left else 'each has a cause'}"


def _offender(offender: Offender) -> models.Offender:
    return models.Offender(
        output=offender.output,
        index=offender.index,
        input=_decimal(offender.input),
        input_bits=_bits(offender.input),
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
