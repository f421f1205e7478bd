"""What the checks of the four functions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from flashcheck.compare.attribution import UNEXPLAINED, Explanation
from flashcheck.compare.digest import MODULUS, mix
from flashcheck.compare.settings import Setting
from flashcheck.compare.ulp import distance
from flashcheck.config import QuantizationSpec
from flashcheck.inputs.domains import Domain, Enumeration, Slice
from flashcheck.measures import SAME_BITS_TWICE, Metrics
from flashcheck.report.models import Contract
from flashcheck.suites.calls import SubjectCalls, differing_elements
from flashcheck.suites.exhaustive.tally import Buckets, BucketTally, Tally, counted

PROBE = 1 << 16
"""Inputs that the subject is given a second time: the first of each batch of the eager reference's,
and of the fused kernel's first."""


EAGER = "the eager reference on the GPU"


class Check(Protocol):
    """One case: a function of the subject over a domain.

    Attributes:
        case: its name.
        function: what the reference computes in it, whatever the suite's file calls it.
        methods: of the subject that it needs.
        settings: of the arithmetic, that mismatches are counted under.
        outputs: how many are compared of each input.
        on_a_gpu: what compares them there, in words.
    """

    @property
    def case(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def methods(self) -> tuple[str, ...]: ...
    @property
    def domain(self) -> Domain: ...
    @property
    def settings(self) -> Sequence[Setting]: ...
    @property
    def outputs(self) -> int: ...
    @property
    def on_a_gpu(self) -> str: ...

    def check(
        self,
        slices: Sequence[Slice],
        enumeration: Enumeration,
        calls: SubjectCalls,
        *,
        digested: bool,
    ) -> Tally:
        """Feed some slices at once to both sides, and compare, where ``calls`` says.

        Args:
            digested: whether to digest the reference's answers.

        Raises:
            SubjectError: the subject raised, or broke its protocol.
        """

    def metrics(self, tally: Tally) -> Metrics:
        """The figures of a case from the tally of all its parts."""


@dataclass(frozen=True)
class Fed:
    """What is fed at once.

    Attributes:
        inputs: of the function, each flat.
        index: of each input in the domain, int64.
        strata: the float32 exponent field of each, int64, none below the one before.
        digested: whether answers are to be digested.
    """

    inputs: tuple[torch.Tensor, ...]
    index: torch.Tensor
    strata: torch.Tensor
    exponents: frozenset[int]
    digested: bool

    @classmethod
    def of(
        cls,
        domain: Domain,
        enumeration: Enumeration,
        slices: Sequence[Slice],
        device: str,
        digested: bool,
    ) -> Fed:
        """Some slices of an enumerated domain."""
        positions = [enumeration.positions(part, device) for part in slices]
        parts = list(zip(slices, positions, strict=True))
        inputs = [domain.values(part.exponent, there) for part, there in parts]
        return cls(
            tuple(_joined(some) for some in zip(*inputs, strict=True)),
            _joined([enumeration.index(part, there) for part, there in parts]),
            _joined([torch.full_like(there, part.exponent) for part, there in parts]),
            frozenset(part.exponent for part in slices),
            digested,
        )

    def __len__(self) -> int:
        return self.index.numel()

    def at(self, where: torch.Tensor) -> Fed:
        """Some of it."""
        inputs = tuple(some[where] for some in self.inputs)
        return Fed(inputs, self.index[where], self.strata[where], self.exponents, self.digested)

    def tallied(self, answers: Sequence[torch.Tensor] = (), **where: torch.Tensor) -> Buckets:
        """Count by bucket where boolean tensors are true.

        Args:
            answers: integers of the inputs' bits and the reference's answers, for the digest.
        """
        mixed = mix(*answers) if answers and self.digested else None
        if len(self.exponents) == 1:
            (exponent,) = self.exponents
            whole = None if mixed is None else int(mixed.sum(dtype=torch.int64)) % MODULUS
            counts = counted(**where)
            return {exponent: BucketTally(n=len(self), counts=counts, digest=whole)}
        bounds = self._bounds()
        sums = {name: _between(bounds, mask.long()) for name, mask in where.items()}
        digests = None if mixed is None else _between(bounds, mixed.long())
        return {
            exponent: BucketTally(
                n=bounds[place + 1] - bounds[place],
                counts={name: values[place] for name, values in sums.items()},
                digest=None if digests is None else digests[place] % MODULUS,
            )
            for place, exponent in enumerate(sorted(self.exponents))
        }

    def _bounds(self) -> list[int]:
        """Where each exponent's inputs begin, in order, and where the last ones end."""
        wanted = torch.tensor(sorted(self.exponents), device=self.strata.device)
        return [*torch.searchsorted(self.strata, wanted).tolist(), len(self)]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def _between(bounds: Sequence[int], values: torch.Tensor) -> list[int]:
    """The sums of values from one bound to the next."""
    sums = torch.nn.functional.pad(values.cumsum(0), (1, 0))[list(bounds)]
    found: list[int] = (sums[1:] - sums[:-1]).tolist()
    return found


def add_causes(buckets: Buckets, explanation: Explanation) -> None:
    """Note of each bucket why its outputs differ."""
    for exponent, by_output in explanation.by_stratum.items():
        buckets[exponent] += BucketTally(causes=by_output)


def same_again(
    outputs: Sequence[torch.Tensor], again: Callable[[], Sequence[torch.Tensor]]
) -> Contract:
    """Whether the subject gives the first elements' bits a second time, fed those alone.

    Args:
        outputs: of the whole batch.
        again: makes the outputs of its first :data:`PROBE` inputs, or a few less.
    """
    second = again()
    differing = sum(
        differing_elements(output[: other.numel()], other)
        for output, other in zip(outputs, second, strict=True)
    )
    return Contract(
        name=SAME_BITS_TWICE,
        ok=not differing,
        detail="outputs of the first inputs differ in a second run of them"
        if differing
        else f"equal in a second run of the first {PROBE:,} inputs",
    )


def function_of(method: str, spec: QuantizationSpec) -> str:
    """A method with the options that are set, as ``quantize/signed+softsign``."""
    return f"{method}/{'+'.join(name for name, on in spec.options().items() if on) or 'plain'}"


def largest_ulp(subject: torch.Tensor, reference: torch.Tensor, differ: torch.Tensor) -> int:
    """The largest distance of float32 that differ, where neither is a NaN; 0 where none does."""
    where = differ.nonzero().squeeze(1)
    mine, theirs = subject[where], reference[where]
    numbers = ~(mine.isnan() | theirs.isnan())
    apart = distance(mine[numbers], theirs[numbers])
    return int(apart.max()) if apart.numel() else 0


def unexplained(tally: Tally) -> int:
    """Mismatches that have no cause."""
    return sum(causes.get(UNEXPLAINED, 0) for causes in tally.by_output().values())
