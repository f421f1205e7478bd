"""The round trip of whole exponents on a GPU, checked by one kernel beside the subject's own.

The kernel compares and counts. Elements that differ, and those that a setting of the arithmetic
could change, it only lists: the eager reference judges them, as it does everywhere else.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from flashcheck.compare.digest import MODULUS
from flashcheck.compare.metrics import SplittingOutputs
from flashcheck.errors import CheckerError
from flashcheck.formats import ECC_FORMATS, NARROW_FORMATS
from flashcheck.inputs.domains import Enumeration, Slice
from flashcheck.measures import INPUTS_UNCHANGED
from flashcheck.report.models import Contract
from flashcheck.subjects.base import Backend, call
from flashcheck.suites.calls import SubjectCalls, check_output
from flashcheck.suites.exhaustive.checks import PROBE, Check, same_again
from flashcheck.suites.exhaustive.round_trip import Listed, RoundTrip
from flashcheck.suites.exhaustive.tally import BucketTally, Tally, total

TILE = 1 << 16
_TILES = 1 << 8
"""Of each exponent: one for each sign and upper 7 bits of the mantissa."""
_TILES_AT_ONCE = 4 * _TILES
_LISTS = 32
_CAPACITY = 2 * _TILES * TILE // _LISTS
"""Of a list, more than the tiles of a row can have that write to it: no row is too much."""
_RESOLVED_AT_ONCE = 1 << 24
_BLOCK = 1024
_WARPS = 8
_FUSING_BELOW = 25
"""A product is subnormal only below this float32 exponent: see ``sensitivity.fusing_matters``."""


@dataclass(frozen=True)
class Row:
    """Tiles of one exponent that follow each other, counted together."""

    exponent: int
    first: int
    tiles: int

    def upper(self) -> torch.Tensor:
        """The upper 16 bits of each tile's float32, int32."""
        return _upper()[self.exponent, self.first : self.first + self.tiles]

    def part(self) -> Slice:
        """The same as a slice of the domain."""
        return Slice(self.exponent, self.first * TILE, (self.first + self.tiles) * TILE)


@dataclass(frozen=True)
class Rows:
    """What the kernel can check."""

    check: RoundTrip
    rows: Sequence[Row]

    def tally(
        self,
        calls: SubjectCalls,
        others: Callable[[], Sequence[tuple[Tally, Listed]]] = lambda: (),
    ) -> Tally:
        """Check them.

        Args:
            others: compares other parts meanwhile, which are then judged in one go with these.

        Raises:
            SubjectError: the subject raised, or broke its protocol.
            CheckerError: kernel and eager reference do not count alike.
        """
        run = Run(self.check, self.rows, calls)
        with nullcontext() if run.reuses_outputs else _beside(calls.compare_on):
            compared = others()
        if not run.overflowed():
            return run.tally(compared)
        middle = len(self.rows) // 2
        first, second = (Rows(self.check, r) for r in (self.rows[:middle], self.rows[middle:]))
        return first.tally(calls, lambda: compared) + second.tally(calls)

    def draw(self, *, seed: int) -> Rows:
        """One tile of them."""
        generator = torch.Generator().manual_seed(seed)
        row = self.rows[int(torch.randint(len(self.rows), (1,), generator=generator))]
        tile = int(torch.randint(row.tiles, (1,), generator=generator))
        return Rows(self.check, [Row(row.exponent, row.first + tile, 1)])


def parted(
    check: Check, enumeration: Enumeration, slices: Sequence[Slice], calls: SubjectCalls
) -> tuple[Rows | None, list[Slice]]:
    """What the kernel can check of some slices, and the rest.

    An exponent has to be there whole; of it are checked the tiles in which every float32 has a
    finite narrow weight.
    """
    on_a_gpu = calls.subject.backend == Backend.CUDA.value
    if not isinstance(check, RoundTrip) or not on_a_gpu or calls.every_configuration:
        return None, list(slices)
    tiles = _tiles_by_definition(check.narrow_dtype)
    rows: list[Row] = []
    others: list[Slice] = []
    for part in slices:
        if enumeration.is_whole(part.exponent) and len(part) == _TILES * TILE:
            defined, undefined = tiles[part.exponent]
            rows += defined
            others += [row.part() for row in undefined]
        else:
            others.append(part)
    return Rows(check, rows) if rows else None, others


@functools.cache
def _upper() -> torch.Tensor:
    """Of each exponent and place of a tile in it, the upper 16 bits of its float32, int32."""
    exponents = torch.arange(_TILES, dtype=torch.int32)[:, None]
    places = torch.arange(_TILES, dtype=torch.int32)
    # A place is the sign, then 7 bits of the mantissa; between them belongs the exponent.
    return (places >> 7) << 15 | exponents << 7 | places & 0x7F


@functools.cache
def _tiles_by_definition(narrow_dtype: torch.dtype) -> list[tuple[list[Row], list[Row]]]:
    """Of each exponent the tiles of which all float32 have a finite narrow weight, and the rest."""
    largest = (_upper() << 16 | TILE - 1).view(torch.float32)
    finite = largest.to(narrow_dtype).isfinite().tolist()
    return [
        (_runs(exponent, flags, wanted=True), _runs(exponent, flags, wanted=False))
        for exponent, flags in enumerate(finite)
    ]


def _runs(exponent: int, flags: Sequence[bool], *, wanted: bool) -> list[Row]:
    """The tiles that have a flag as wanted, those that follow each other in one row."""
    rows, first = [], 0
    for flag, group in itertools.groupby(flags):
        tiles = len(list(group))
        if flag is wanted:
            rows.append(Row(exponent, first, tiles))
        first += tiles
    return rows


def _share(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Whether tensors that are all still alive begin in the same memory."""
    return any(a.data_ptr() == b.data_ptr() for a, b in zip(one, other, strict=True))


@contextmanager
def _beside(device: str) -> Iterator[None]:
    """What is run here need not wait for what the device was given before."""
    if torch.device(device).type == "cpu":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


class Run:
    """Feeds some rows to the subject and lets the kernel check what comes back, all at once.

    Nothing waits for the GPU until the end.

    Attributes:
        reuses_outputs: whether the subject writes its outputs where those of its last call are:
            nothing else may call it before the kernel has read them.
    """

    def __init__(self, check: RoundTrip, rows: Sequence[Row], calls: SubjectCalls) -> None:
        from flashcheck.kernels import checker

        self._kernels = checker
        self._check = check
        self._rows = rows
        self._calls = calls
        self._device = calls.compare_on
        self._counts = self._zeros(len(rows), checker.COLUMNS)
        self._numbers = self._zeros(_LISTS)
        self._lists = torch.empty((3, _LISTS, _CAPACITY), dtype=torch.int32, device=self._device)
        upper = torch.cat([row.upper() for row in rows])
        counted_in = np.repeat(np.arange(len(rows), dtype=np.int32), [row.tiles for row in rows])
        places = torch.from_numpy(counted_in)
        self.tiles = torch.stack([upper, places]).to(self._device)
        self._contracts: list[Contract] = []
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None
        self.reuses_outputs = False
        for start in range(0, upper.numel(), _TILES_AT_ONCE):
            self._feed(self.tiles[:, start : start + _TILES_AT_ONCE])

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self._device)

    def _feed(self, tiles: torch.Tensor) -> None:
        """Feed some tiles at once to the subject, and count what it gives."""
        x, narrow = self.inputs(tiles[0])
        subject = self.split(x, narrow)
        self.launch(tiles, x, narrow, subject)
        if not self._contracts:
            self._contracts.append(self._probe(x, narrow, subject))

    def launch(
        self, tiles: torch.Tensor, x: torch.Tensor, narrow: torch.Tensor, subject: SplittingOutputs
    ) -> None:
        """Let the kernel check what came back.

        Args:
            tiles: int32, shape (2, tiles): the upper 16 bits of each, and the row of each.
        """
        fmt = NARROW_FORMATS[self._check.pair.narrow]
        largest = ECC_FORMATS[self._check.pair.ecc].max_code
        self._kernels.check_round_trip_kernel[(tiles.shape[1],)](
            tiles[0],
            tiles[1],
            x.view(torch.int32),
            narrow.view(torch.int16),
            subject.rho,
            subject.values.view(torch.int32),
            self._counts,
            self._lists,
            self._numbers,
            LARGEST=float(largest),
            RECIPROCAL=1.0 / largest,
            MANTISSA=fmt.mantissa_bits,
            EXPONENT_MASK=fmt.exponent_mask,
            BIAS=fmt.bias,
            FUSING_BELOW=_FUSING_BELOW,
            LISTS=_LISTS,
            CAPACITY=_CAPACITY,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )

    def inputs(self, tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The float32 of tiles, by their upper 16 bits, and the nearest narrow weights."""
        n = tiles.numel() * TILE
        x = torch.empty(n, dtype=torch.float32, device=self._device)
        narrow = torch.empty(n, dtype=self._check.narrow_dtype, device=self._device)
        self._kernels.enumerate_kernel[(n // _BLOCK,)](
            tiles,
            x.view(torch.int32),
            narrow.view(torch.int16),
            MANTISSA=NARROW_FORMATS[self._check.pair.narrow].mantissa_bits,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,
        )
        return x, narrow

    def split(self, x: torch.Tensor, narrow: torch.Tensor) -> SplittingOutputs:
        """What the subject makes of them.

        Raises:
            SubjectError: it raised, or broke its protocol.
        """
        subject, dtype = self._calls.subject, self._check.ecc_dtype
        rho = call(subject, "compute_ecc", x, narrow, ecc_dtype=dtype)
        check_output("compute_ecc", "codes", rho, dtype, x.shape, self._device)
        values = call(subject, "reconstruct", narrow, rho)
        check_output("reconstruct", "values", values, torch.float32, x.shape, self._device)
        # What came before is kept alive, so that only the subject can write where it is.
        self.reuses_outputs |= self._last is not None and _share((rho, values), self._last)
        self._last = (rho, values)
        return SplittingOutputs(rho.contiguous(), values.contiguous())

    def _probe(self, x: torch.Tensor, narrow: torch.Tensor, subject: SplittingOutputs) -> Contract:
        """Run the first inputs again, after the kernel saw what the first run gave."""
        first = [subject.rho[:PROBE].clone(), subject.values[:PROBE].clone()]

        def again() -> Sequence[torch.Tensor]:
            second = self.split(x[:PROBE], narrow[:PROBE])
            return second.rho, second.values

        return same_again(first, again)

    def overflowed(self) -> bool:
        """Whether more had to be listed than there is room for."""
        return int(self._numbers.max()) > _CAPACITY

    def tally(self, others: Sequence[tuple[Tally, Listed]]) -> Tally:
        """Let the eager reference judge what is listed, and add up."""
        compared = total([self._counted(), *(tally for tally, _ in others)])
        resolved = self._resolved([self._listed(), *(listed for _, listed in others)])
        self._hold(compared.buckets, resolved)
        return compared + resolved

    def _counted(self) -> Tally:
        buckets: dict[int, BucketTally] = {}
        changed = 0
        for row, values in zip(self._rows, self._counts.tolist(), strict=True):
            *numbers, digest = values
            counts = dict(zip(self._kernels.COUNTS, numbers, strict=True))
            changed += counts.pop("changed")
            # The reference gives back no infinity where narrow weights are finite.
            counts["nonfinite_reference"] = 0
            counts["nonfinite_disagree"] = counts["nonfinite_subject"]
            bucket = BucketTally.model_construct(
                n=row.tiles * TILE, counts=counts, digest=digest % MODULUS
            )
            known = buckets.get(row.exponent)
            buckets[row.exponent] = known + bucket if known else bucket
        contract = Contract(
            name=INPUTS_UNCHANGED,
            ok=not changed,
            detail=f"{changed:,} inputs changed in place" if changed else "as they were",
        )
        return Tally(buckets=buckets, contracts=[*self._contracts, contract])

    def _listed(self) -> Listed:
        numbers = self._numbers.tolist()
        bits, rho, values = (
            torch.cat([some[:number] for some, number in zip(plane, numbers, strict=True)])
            for plane in self._lists
        )
        subject = SplittingOutputs(rho.to(self._check.ecc_dtype), values.view(torch.float32))
        return Listed(bits.view(torch.float32), subject)

    def _resolved(self, parts: Sequence[Listed]) -> Tally:
        x = torch.cat([part.x for part in parts])
        rho = torch.cat([part.subject.rho for part in parts])
        values = torch.cat([part.subject.values for part in parts])
        some = (torch.split(each, _RESOLVED_AT_ONCE) for each in (x, rho, values))
        return total(
            self._check.resolve(Listed(x, SplittingOutputs(rho, values)))
            for x, rho, values in zip(*some, strict=True)
        )

    def _hold(self, buckets: dict[int, BucketTally], resolved: Tally) -> None:
        """The eager reference has to explain as many mismatches as the kernel counted."""
        for exponent, bucket in buckets.items():
            explained = resolved.buckets.get(exponent, BucketTally()).causes
            for output, count in (("rho", "rho_mismatches"), ("reconstructed", "recon_mismatches")):
                counted = bucket.counts.get(count, 0)
                found = sum(explained.get(output, {}).values())
                if found != counted:
                    raise CheckerError(
                        f"{self._check.case}: of exponent {exponent} the kernel counted "
                        f"{counted:,} {output} that differ, the eager reference {found:,}; please "
                        "report it"
                    )
