"""Why a comparison on a GPU is to be trusted: it is held against the CPU's.

What the reference gives there is summed up in a digest of each bucket, and those of the CPU, over
the whole domain, came with flashcheck. And in each run some inputs, other ones each time, are
compared by both.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from flashcheck.errors import CheckerError
from flashcheck.inputs.domains import Enumeration, Slice
from flashcheck.report.enumeration import Checker
from flashcheck.suites.calls import SubjectCalls, same_twice
from flashcheck.suites.exhaustive.checks import Check
from flashcheck.suites.exhaustive.tally import Tally

SAMPLED = "sampled"
"""In the totals of a tally: how many inputs were compared on the CPU too."""

_SAMPLE = 1 << 12
_DIGESTS = Path(__file__).parents[2] / "reference" / "digests.json"


def draw(enumeration: Enumeration, slices: Sequence[Slice], *, seed: int) -> Slice:
    """A few inputs of some slices."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(high: int) -> int:
        return int(torch.randint(max(1, high), (1,), generator=generator))

    whole = slices[drawn(len(slices))]
    rows = max(1, _SAMPLE // enumeration.row)
    start = whole.start + drawn(len(whole) // enumeration.row - rows) * enumeration.row
    return Slice(whole.exponent, start, min(start + rows * enumeration.row, whole.stop))


def hold(
    check: Check, enumeration: Enumeration, part: Slice, there: Tally, calls: SubjectCalls
) -> Tally:
    """Compare a slice on the CPU as well.

    A subject that breaks a contract need not have given both comparisons the same outputs, and
    its case has failed: nothing is held then.

    Args:
        there: what the comparison on the device came to.

    Returns:
        How many inputs were compared alike, and contracts that the subject broke meanwhile.

    Raises:
        CheckerError: the CPU comes to anything else.
    """

    def compared() -> Tally:
        return check.check([part], enumeration, replace(calls, compare_on="cpu"), digested=True)

    here = compared()
    broken = [contract for contract in (*there.contracts, *here.contracts) if not contract.ok]
    differing = [] if broken else _differing(here, there)
    if differing and _differing(here, compared()):
        broken = [same_twice("outputs of some inputs")]
    elif differing:
        name, mine, theirs = differing[0]
        raise CheckerError(
            f"{check.case}: of inputs {part.start:,} to {part.stop:,} of exponent "
            f"{part.exponent} the comparison on {calls.device} is not that of the CPU: {name} "
            f"{theirs} there, {mine} here; please report it"
        )
    return Tally(totals={SAMPLED: 0 if broken else len(part)}, contracts=broken)


def _differing(one: Tally, other: Tally) -> list[tuple[str, object, object]]:
    """What two comparisons of the same inputs do not agree on; contracts only watch the calls."""
    names = type(one).model_fields.keys() - {"contracts", "seconds"}
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in sorted(names))
    return [(name, mine, theirs) for name, mine, theirs in pairs if mine != theirs]


def checker(check: Check, enumeration: Enumeration, found: Tally) -> Checker:
    """What compared, and what it was held against.

    Raises:
        CheckerError: a bucket's digest is not the CPU's.
    """
    digests = {e: b.digest for e, b in found.buckets.items() if b.digest is not None}
    sampled = found.totals.get(SAMPLED)
    if not digests and sampled is None:
        return Checker(words="the eager reference on the CPU")
    committed = of_the_cpu().get(check.function, {})
    whole = {
        bucket.exponent: bucket
        for bucket in check.domain.buckets
        if bucket.exponent in digests
        and enumeration.is_whole(bucket.exponent)
        and found.buckets[bucket.exponent].n + found.buckets[bucket.exponent].undefined
        == bucket.size
    }
    for exponent in whole:
        if exponent in committed and digests[exponent] != committed[exponent]:
            raise CheckerError(
                f"{check.case}: over exponent {exponent} the reference on this GPU is not that of "
                "the CPU (their digests differ); please report it"
            )
    known = len(whole.keys() & committed.keys())
    return Checker(
        words=check.on_a_gpu,
        digests=f"equal to the CPU's in {known} of {len(digests)} buckets"
        if known
        else f"of none of {len(digests)} buckets: none is whole, or the CPU's are not known",
        sample=f"{sampled or 0:,} inputs compared alike on the CPU",
    )


@functools.cache
def of_the_cpu() -> dict[str, dict[int, int]]:
    """The digests that came with flashcheck: by function and float32 exponent field."""
    stored = json.loads(_DIGESTS.read_text(encoding="utf-8"))
    return {
        function: {int(exponent): int(value, 16) for exponent, value in buckets.items()}
        for function, buckets in stored.items()
    }
