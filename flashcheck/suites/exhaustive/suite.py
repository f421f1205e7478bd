"""An exhaustive suite: its cases, the chunks they are checked in, and what the chunks add up to."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from flashcheck.compare.attribution import best
from flashcheck.compare.bounds import OperationBounds
from flashcheck.config import ExhaustiveConfig
from flashcheck.errors import SubjectError
from flashcheck.inputs.domains import Enumeration, Slice
from flashcheck.report.enumeration import (
    Bucket,
    Range,
    SettingCount,
    Threshold,
    Undefined,
)
from flashcheck.report.enumeration import Enumeration as EnumerationRecord
from flashcheck.report.models import CaseResult, Mismatches, Selection, Status
from flashcheck.subjects.base import Backend
from flashcheck.suites import explaining
from flashcheck.suites.base import Measured, failed, unsupported
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.exhaustive import fused, trust
from flashcheck.suites.exhaustive.checks import Check
from flashcheck.suites.exhaustive.codes import Quantize
from flashcheck.suites.exhaustive.round_trip import RoundTrip
from flashcheck.suites.exhaustive.tally import BucketTally, Tally, total
from flashcheck.suites.exhaustive.values import Dequantize, Reconstruct


@dataclass(frozen=True)
class Extent:
    """How much is worked on at a time: what memory is for.

    Attributes:
        part: inputs that are compared at once.
        chunk: inputs of a chunk, which is done or not done.
    """

    part: int
    chunk: int


EXTENTS = {
    Backend.CUDA.value: Extent(part=1 << 24, chunk=1 << 32),
    Backend.INTERPRETER.value: Extent(part=1 << 20, chunk=1 << 22),
    Backend.NATIVE.value: Extent(part=1 << 20, chunk=1 << 22),
}


_SAMPLED = 16
"""Of so many chunks of a case one is sampled, the first among them."""


@dataclass(frozen=True)
class Chunk:
    """Some slices of a case, checked in one go.

    Attributes:
        number: of the chunk among all chunks of the suite, whichever shard it is in.
        sampled: whether a sample of it is compared on the CPU too, where that is not done anyway.
    """

    number: int
    case: str
    slices: tuple[Slice, ...]
    sampled: bool

    def elements(self) -> int:
        """How many inputs it feeds."""
        return sum(len(part) for part in self.slices)


@dataclass(frozen=True)
class ExhaustiveSuite:
    """One configured suite of this kind."""

    config: ExhaustiveConfig
    selection: Selection

    def elements(self) -> int:
        """About how many inputs a run feeds."""
        shards = self.selection.shard.count if self.selection.shard else 1
        return sum(each.total for each in self._enumerations.values()) // shards

    @cached_property
    def checks(self) -> Mapping[str, Check]:
        """The selected cases by name."""
        operations = OperationBounds.of(self.config.tolerances)
        size = self.config.group_size
        pairs = [p for p in self.config.formats if self.selection.takes_spec(p.case)]
        specs = [s for s in self.config.specs if self.selection.takes_spec(s.name)]
        made: list[Check] = [
            *(RoundTrip(pair, operations) for pair in pairs),
            *(Reconstruct(pair, operations) for pair in pairs),
            *(Dequantize(spec, operations, size) for spec in specs),
            *(Quantize(spec, operations, size) for spec in specs),
        ]
        return {check.case: check for check in made}

    @cached_property
    def _enumerations(self) -> Mapping[str, Enumeration]:
        exponents = self.selection.exponents
        return {
            name: Enumeration(
                check.domain,
                exponents=exponents.fields() if exponents else None,
                limit=self.selection.limit,
            )
            for name, check in self.checks.items()
        }

    def chunks(self, backend: str, methods: Collection[str]) -> list[Chunk]:
        """What is to be checked on a backend, those of the selected shard only.

        Args:
            methods: those that the subject has; cases that need another are left out.
        """
        shard = self.selection.shard
        return [
            chunk
            for chunk in self._all_chunks(EXTENTS[backend])
            if (shard is None or chunk.number % shard.count == shard.index - 1)
            and set(self.checks[chunk.case].methods) <= set(methods)
        ]

    def _all_chunks(self, extent: Extent) -> Iterator[Chunk]:
        numbers = itertools.count()
        for name, enumeration in self._enumerations.items():
            for place, slices in enumerate(
                _gathered(enumeration.slices(extent.part), extent.chunk)
            ):
                yield Chunk(next(numbers), name, slices, sampled=place % _SAMPLED == 0)

    def check(self, chunk: Chunk, calls: SubjectCalls, *, seed: int) -> Tally:
        """Check a chunk on the subject's device.

        Args:
            seed: of the sample that is also compared on the CPU, where the device is none.

        Raises:
            SubjectError: the subject raised, or broke its protocol.
            FlashcheckError: the comparison on the device is not that of the CPU.
        """
        clock = time.perf_counter()
        check, enumeration = self.checks[chunk.case], self._enumerations[chunk.case]
        calls = replace(calls, compare_on=calls.device)
        on_cpu = calls.compare_on == "cpu"
        rows, others = fused.parted(check, enumeration, chunk.slices, calls)

        def eager(slices: Sequence[Slice]) -> Tally:
            return check.check(slices, enumeration, calls, digested=not on_cpu)

        gathered = list(_gathered(others, EXTENTS[calls.subject.backend].part))
        if rows:
            whole = rows.check
            tally = rows.tally(
                calls,
                lambda: [
                    whole.compare(some, enumeration, calls, digested=True) for some in gathered
                ],
            )
        else:
            tally = total(eager(some) for some in gathered)
        if chunk.sampled and not on_cpu:
            seed += chunk.number
            if rows:
                tile = rows.draw(seed=seed)
                part, there = tile.rows[0].part(), tile.tally(calls)
            else:
                part = trust.draw(enumeration, others, seed=seed)
                there = eager([part])
            tally += trust.hold(check, enumeration, part, there, calls)
        tally.seconds = time.perf_counter() - clock
        return tally

    def finish(self, case: str, methods: Collection[str], found: Tally | SubjectError) -> Measured:
        """A case as measured, from the sum of its chunks.

        Args:
            methods: those that the subject has.

        Raises:
            CheckerError: a digest of the reference is not that of the CPU.
        """
        check = self.checks[case]
        measured = Measured(case=case)
        missing = [method for method in check.methods if method not in methods]
        if missing:
            return unsupported(measured, missing)
        if isinstance(found, SubjectError):
            return failed(measured, found)
        record = self._record(check, self._enumerations[case], found)
        measured.seconds = found.seconds
        measured.enumeration = record
        measured.numel = sum(bucket.n for bucket in record.buckets)
        measured.contracts = found.contracts
        if measured.numel:
            measured.metrics = check.metrics(found)
            measured.mismatches = _mismatches(check, record, found)
        else:
            measured.problem = (Status.UNSUPPORTED, "nothing of it is compared in this part")
        return measured

    def _record(self, check: Check, enumeration: Enumeration, found: Tally) -> EnumerationRecord:
        buckets = [
            Bucket(exponent=exponent, **bucket.model_dump())
            for exponent, bucket in sorted(found.buckets.items())
        ]
        covered = sum(bucket.n + bucket.undefined for bucket in buckets)
        return EnumerationRecord(
            domain=check.domain.words,
            size=enumeration.size,
            covered=covered,
            whole=covered == enumeration.size,
            checker=trust.checker(check, enumeration, found),
            settings=[
                SettingCount(
                    words=setting.words(),
                    arithmetic=explaining.arithmetic_record(setting.arithmetic),
                    mismatches=left,
                )
                for setting, left in zip(check.settings, found.left, strict=False)
            ],
            totals=dict(sorted(found.totals.items())),
            largest=dict(sorted(found.largest.items())),
            undefined=[
                Undefined(what=what, **counts) for what, counts in sorted(found.undefined.items())
            ],
            thresholds=_thresholds(found),
            buckets=buckets,
        )


def _gathered(slices: Iterable[Slice], most: int) -> Iterator[tuple[Slice, ...]]:
    """Slices in groups that have no more inputs than that."""
    some: list[Slice] = []
    for part in slices:
        if some and sum(map(len, some)) + len(part) > most:
            yield tuple(some)
            some = []
        some.append(part)
    if some:
        yield tuple(some)


def _mismatches(check: Check, record: EnumerationRecord, found: Tally) -> Mismatches:
    by_output = {name: dict(sorted(c.items())) for name, c in sorted(found.by_output().items())}
    differ = sum(number for causes in by_output.values() for number in causes.values())
    n = sum(bucket.n for bucket in record.buckets)
    chosen = best(differ, dict(zip(check.settings, found.left, strict=True)))
    return explaining.record_counts(
        by_output,
        chosen,
        outputs=n * check.outputs + found.totals.get("groups", 0),
        worst=found.worst,
        margin=found.margin,
        scope=f"all {n:,} {record.domain}" if record.whole else None,
    )


def _thresholds(found: Tally) -> list[Threshold]:
    subject, reference = (found.ranges.get(side, {}) for side in ("subject", "reference"))
    return [
        Threshold(
            code=code, subject=_range(subject.get(code)), reference=_range(reference.get(code))
        )
        for code in sorted(subject.keys() | reference.keys())
    ]


def tally_of(case: CaseResult) -> Tally:
    """The tally that a case of a report was finished from."""
    record = case.enumeration
    if record is None:
        return Tally(seconds=case.duration_s)
    undefined = {some.what: some.model_dump(exclude={"what"}) for some in record.undefined}
    sides = ("subject", "reference")
    ranges = {
        side: {
            row.code: (_ordinal(ends.low_bits), _ordinal(ends.high_bits))
            for row in record.thresholds
            if (ends := getattr(row, side)) is not None
        }
        for side in sides
    }
    return Tally(
        buckets={
            b.exponent: BucketTally(**b.model_dump(exclude={"exponent"})) for b in record.buckets
        },
        left=[setting.mismatches for setting in record.settings],
        totals=record.totals,
        largest=record.largest,
        worst=case.mismatches.worst if case.mismatches else [],
        margin=case.mismatches.margin if case.mismatches else [],
        contracts=case.contracts,
        undefined=undefined,
        ranges=ranges if record.thresholds else {},
        seconds=case.duration_s,
    )


def _ordinal(bits: str) -> int:
    pattern = int(bits, 16)
    return pattern if pattern < 1 << 31 else (1 << 31) - pattern


def _range(ends: tuple[int, int] | None) -> Range | None:
    if ends is None:
        return None
    low, high = (end if end >= 0 else (1 << 31) - end for end in ends)
    return Range(
        low=_float32(low), low_bits=f"0x{low:08x}", high=_float32(high), high_bits=f"0x{high:08x}"
    )


def _float32(pattern: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", pattern))[0]
    return value
