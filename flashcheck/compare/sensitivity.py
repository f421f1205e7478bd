"""Where a switch of the arithmetic could change a result at all: everywhere else it need not be
tried, and an enumeration of billions of inputs can afford every setting.

Each test is allowed to name too many elements, never too few.
"""

from __future__ import annotations

import torch

from flashcheck.reference import splitting as reference

_ROUNDING = 2.0**-23
_NEVER_SUBNORMAL = -126 + 15


def near_tie(product: torch.Tensor, n: int) -> torch.Tensor:
    """Where another rounding of ``x * n``, fused with an added half or not, may give another code.

    All give the integer nearest to the exact product unless that is within their own errors of a
    tie. ``product`` is float32, at most ``n`` in magnitude, so that it is within ``n 2^-24`` of the
    exact one; the sum with a half is rounded by at most ``(n + 1/2) 2^-24`` more.
    """
    distance_to_tie = 0.5 - (product - torch.round(product)).abs()
    return distance_to_tie <= (n + 1) * _ROUNDING


def fusing_matters(narrow: torch.Tensor) -> torch.Tensor:
    """Of which weights a product fused with the sum of their reconstruction may be another one.

    The product scales a float32 by a power of two, which is exact unless it is subnormal. A code's
    share of N is at least 2^-15 where it is not 0, so that no product of weights with ``l`` from
    -111 on is.
    """
    return reference.log2_half_ulp(narrow) < _NEVER_SUBNORMAL
