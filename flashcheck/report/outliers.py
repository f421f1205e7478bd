"""Which exponents of a sweep stand out, so that a table need not show them all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from flashcheck.report.models import Stratum

_SIGMAS = 6.0
"""Of the sampling error of a share; over 256 exponents chance alone reaches this about never."""

_RATES: tuple[Callable[[Stratum], int], ...] = (
    lambda s: s.rho_mismatches,
    lambda s: s.recon_mismatches,
    lambda s: s.subject_exact,
    lambda s: s.reference_exact,
    lambda s: s.nonfinite_disagree,
)


@dataclass(frozen=True)
class Outliers:
    """The strata that stand out, the farthest first, and those that do not."""

    outlying: list[Stratum]
    others: list[Stratum]


def find(strata: list[Stratum]) -> Outliers:
    """Part strata by whether a count's share is far from the median share of all strata.

    Far is six standard deviations of a sample of the stratum's size.
    """
    strata = [stratum for stratum in strata if stratum.n]
    if not strata:
        return Outliers([], [])
    centres = [median(rate(s) / s.n for s in strata) for rate in _RATES]
    scores = {id(s): _score(s, centres) for s in strata}
    ranked = sorted(strata, key=lambda s: -scores[id(s)])
    outlying = [s for s in ranked if scores[id(s)] > _SIGMAS]
    return Outliers(outlying, [s for s in strata if scores[id(s)] <= _SIGMAS])


def _score(stratum: Stratum, centres: list[float]) -> float:
    scores = []
    for rate, centre in zip(_RATES, centres, strict=True):
        # A count that is elsewhere always 0 or always n has no spread: one element is its unit.
        spread = max(math.sqrt(stratum.n * centre * (1 - centre)), 1.0)
        scores.append(abs(rate(stratum) - centre * stratum.n) / spread)
    return max(scores)
