"""The authors' kernels on Triton's interpreter: its repairs are right, checked, and in memory."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashcheck.errors import UnavailableError
from flashcheck.subjects import backend, gpu, registry
from flashcheck.subjects.base import Backend
from tests.conftest import Cli
from tests.fakes import ReferenceSubject

SIZE = 3_000  # No multiple of a group of 32, of a block of 1,024, or of any of the authors' blocks.
SPECS = [
    {"signed": True, "sqrt": False, "softsign": True},
    {"signed": False, "sqrt": True, "softsign": False},
]


@pytest.fixture
def subject(interpreted: Any) -> Iterator[Any]:
    """The authors' kernels, launched as a run launches them."""
    made, _ = interpreted
    yield made
    made.pin(0)


@pytest.fixture
def kernels(interpreted: Any) -> Any:
    """Our own kernels of one operation, importable once the interpreter is chosen."""
    return importlib.import_module("tests.interpreted_kernels")


def launched(kernel: Any, *inputs: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(inputs[0].shape, dtype=dtype)
    block = 1 << 16
    n = out.numel()
    with np.errstate(all="ignore"):
        kernel[(-(-n // block),)](*inputs, out, n, BLOCK=block)
    return out


def assert_equal_bits(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.dtype == wanted.dtype
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
    same = got.contiguous().view(integer) == wanted.contiguous().view(integer)
    if got.is_floating_point():
        same |= got.isnan() & wanted.isnan()
    assert same.all(), f"{int((~same).sum())} of {same.numel()} differ"


EVERY_BF16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


# ---- The repairs ---------------------------------------------------------------------------


def test_every_bf16_widens_as_in_torch(kernels: Any) -> None:
    wide = launched(kernels.widen, EVERY_BF16, dtype=torch.float32)
    assert_equal_bits(wide, EVERY_BF16.to(torch.float32))


@pytest.mark.parametrize("low", [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_every_neighbourhood_of_a_bf16_narrows_as_in_torch(kernels: Any, low: int) -> None:
    wide = (EVERY_BF16.to(torch.float32).view(torch.int32) | low).view(torch.float32)
    assert_equal_bits(launched(kernels.narrow, wide, dtype=torch.bfloat16), wide.to(torch.bfloat16))


def test_random_float32_narrow_as_in_torch(kernels: Any) -> None:
    g = torch.Generator().manual_seed(5)
    low, high = (torch.randint(0, 1 << 16, (1 << 18,), generator=g) for _ in range(2))
    wide = ((high << 16) | low).to(torch.int32).view(torch.float32)
    assert_equal_bits(launched(kernels.narrow, wide, dtype=torch.bfloat16), wide.to(torch.bfloat16))


def test_copysign_is_torchs(kernels: Any) -> None:
    x = torch.tensor(
        [0.0, -0.0, 1.5, -1.5, 2**-149, -(2**-149), float("inf"), -float("inf"), float("nan")]
    )
    magnitude, sign = x.repeat_interleave(len(x)), x.repeat(len(x))
    got = launched(kernels.copysign, magnitude, sign, dtype=torch.float32)
    assert_equal_bits(got, torch.copysign(magnitude, sign))


def test_pow_is_the_rounded_float64_power(kernels: Any) -> None:
    base = torch.tensor([0.9, 0.95, 0.99, 0.999, 0.9999, 0.5, 1.0, 0.0]).repeat_interleave(100)
    exponent = torch.arange(100, dtype=torch.float32).repeat(8)
    got = launched(kernels.power, base, exponent, dtype=torch.float32)
    assert_equal_bits(got, torch.pow(base.double(), exponent.double()).float())


@pytest.fixture
def interpreter(interpreted: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the repairs; what its functions put in place is taken back afterwards."""
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import InterpreterBuilder

    from flashcheck.subjects import interpreter

    for owner, name in [
        (InterpreterBuilder, "cast_impl"),
        (libdevice, "copysign"),
        (libdevice, "pow"),
    ]:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return interpreter


def _flush_subnormals(data: np.ndarray) -> np.ndarray:
    kept = np.where(data & 0x7F80, data, data & 0x8000)
    return (kept.astype(np.uint32) << 16).view(np.float32)


def _truncate(data: np.ndarray) -> np.ndarray:
    return np.asarray((data.view(np.uint32) >> 16).astype(np.uint16))


def _half_up(data: np.ndarray) -> np.ndarray:
    bits = data.view(np.uint32).astype(np.uint64)
    return np.where(np.isnan(data), 0x7FC0, (bits + 0x8000) >> 16).astype(np.uint16)


def _nan_to_infinity(data: np.ndarray) -> np.ndarray:
    bits = data.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(data), 0x7F80, rounded).astype(np.uint16)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("_widen", _flush_subnormals),
        ("_narrow", _truncate),
        ("_narrow", _half_up),
        ("_narrow", _nan_to_infinity),
    ],
)
def test_a_wrong_conversion_fails_its_check(
    interpreter: Any, monkeypatch: pytest.MonkeyPatch, part: str, wrong: Callable[..., Any]
) -> None:
    assert interpreter._repair_bfloat16()
    monkeypatch.setattr(interpreter, part, wrong)
    with pytest.raises(UnavailableError, match="still gets"):
        interpreter._repair_bfloat16()


@pytest.mark.parametrize(
    ("repair", "function", "wrong"),
    [
        ("_repair_copysign", "copysign", lambda x, y: np.abs(x) * np.sign(y)),
        ("_repair_copysign", "copysign", lambda x, y: x),
        ("_repair_pow", "power", lambda x, y: x * y),
        (
            "_repair_pow",
            "power",
            lambda x, y: np.nextafter((x**y).astype(np.float32), np.float32(2)),
        ),
    ],
)
def test_a_wrong_function_fails_its_check(
    interpreter: Any,
    monkeypatch: pytest.MonkeyPatch,
    repair: str,
    function: str,
    wrong: Callable[..., Any],
) -> None:
    assert getattr(interpreter, repair)()
    monkeypatch.setattr(np, function, wrong)
    with pytest.raises(UnavailableError, match="still gets"), np.errstate(all="ignore"):
        getattr(interpreter, repair)()


def test_without_its_repair_the_interpreter_fails_the_check(
    interpreter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The parts that are right are never put in place: a Triton that changed its names does this.
    class Elsewhere:
        cast_impl = staticmethod(lambda *_: None)

    original = importlib.import_module("triton.runtime.interpreter")
    pristine = importlib.util.spec_from_file_location(
        "triton.runtime.pristine_interpreter", original.__file__
    )
    assert pristine
    assert pristine.loader
    module = importlib.util.module_from_spec(pristine)
    monkeypatch.setitem(sys.modules, pristine.name, module)
    pristine.loader.exec_module(module)
    monkeypatch.setattr(interpreter, "InterpreterBuilder", Elsewhere)
    monkeypatch.setattr(interpreter, "interpreter_builder", module.interpreter_builder)
    monkeypatch.setattr(interpreter, "TensorHandle", module.TensorHandle)
    with pytest.raises(UnavailableError, match=r"bf16 to float32 wrong for [1-9]"):
        interpreter._repair_bfloat16()


def test_a_failed_check_is_exit_code_3(
    cli: Cli, interpreter: Any, monkeypatch: pytest.MonkeyPatch, quant: Path
) -> None:
    monkeypatch.setattr(interpreter, "_narrow", _truncate)
    interpreter.activate.cache_clear()
    try:
        ran = cli("run", quant, "--backend", "interpreter")
    finally:
        monkeypatch.undo()
        interpreter.activate.cache_clear()
        interpreter.activate()
    assert ran.code == 3
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1
    assert "float32 to bf16 wrong" in ran.err
    assert "constraints.txt" in ran.err


def test_each_repair_has_a_name_and_says_what_it_checked(interpreted: Any) -> None:
    _, shims = interpreted
    names = [shim.name for shim in shims]
    assert len(names) == len(set(names))
    assert {"bfloat16_conversion", "libdevice_copysign", "libdevice_pow"} <= set(names)
    assert {"multiprocessor_count", "block_size", "single_configuration"} <= set(names)
    for shim in shims:
        assert shim.repairs
        assert shim.checked


# ---- flashoptim ----------------------------------------------------------------------------


def inputs() -> torch.Tensor:
    """Positive float32 of many magnitudes, some of whose groups overflow or vanish."""
    g = torch.Generator().manual_seed(3)
    spread = torch.exp(torch.randn(SIZE, generator=g) * 4)
    x = (torch.randn(SIZE, generator=g) * spread).abs()
    x[:32], x[64:96], x[200] = 1e-30, 0.0, 1e12
    return x


def pristine_flashoptim() -> Any:
    """A second copy of the authors' module that nothing of ours has touched."""
    original = importlib.import_module("flashoptim.optimizers")
    spec = importlib.util.spec_from_file_location("pristine_optimizers", original.__file__)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def pristine(interpreted: Any) -> Any:
    module = pristine_flashoptim()
    module._get_sm_count = lambda *_: 3
    return module


def test_the_pristine_copy_is_as_the_authors_wrote_it(pristine: Any, subject: Any) -> None:
    ours = importlib.import_module("flashoptim.optimizers")
    assert pristine is not ours
    assert len(pristine._triton_quantize_kernel.configs) == 6
    for name, configs in subject.configurations().items():
        authors = [str(config) for config in getattr(pristine, name).configs]
        assert configs[-len(authors) :] == authors


@pytest.mark.parametrize("spec", SPECS, ids=["momentum", "variance"])
def test_the_authors_configurations_give_the_bits_of_ours(
    subject: Any, pristine: Any, spec: dict[str, bool]
) -> None:
    x = inputs() * (torch.where(torch.arange(SIZE) % 3 == 0, -1.0, 1.0) if spec["signed"] else 1.0)
    codes, scales = subject.quantize(x, group_size=32, **spec)
    values = subject.dequantize(codes, scales, group_size=32, **spec)
    assert scales.isinf().any()
    assert (scales == 0).any()
    quantize, dequantize = pristine._triton_quantize_kernel, pristine._triton_dequantize_kernel
    every = list(zip(list(quantize.configs), list(dequantize.configs), strict=True))
    try:
        for quantize_config, dequantize_config in every:
            # One at a time: with more, the autotuner asks for a GPU driver.
            quantize.configs, dequantize.configs = [quantize_config], [dequantize_config]
            with np.errstate(all="ignore"):
                theirs = pristine.quantize(x, **spec)
                back = pristine.dequantize(*theirs, **spec)
            assert_equal_bits(theirs[0], codes)
            assert_equal_bits(theirs[1], scales)
            assert_equal_bits(back, values)
    finally:
        quantize.configs, dequantize.configs = map(list, zip(*every, strict=True))


@pytest.mark.parametrize("narrow_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ecc_dtype", [torch.int8, torch.int16])
def test_the_authors_block_size_gives_the_bits_of_ours(
    subject: Any, pristine: Any, narrow_dtype: torch.dtype, ecc_dtype: torch.dtype
) -> None:
    x = inputs().clamp(max=6e4)
    narrow = x.to(narrow_dtype)
    ecc = subject.compute_ecc(x, narrow, ecc_dtype=ecc_dtype)
    values = subject.reconstruct(narrow, ecc)
    assert ecc.dtype == ecc_dtype
    with np.errstate(all="ignore"):
        theirs = pristine.compute_ecc_bits(x, narrow, master_bytewidth=2 + ecc_dtype.itemsize)
        back = pristine.reconstruct_fp32_param(narrow, theirs)
    assert_equal_bits(theirs, ecc)
    assert_equal_bits(back, values)


def test_every_configuration_of_the_subject_gives_the_same_bits(subject: Any) -> None:
    x = inputs()
    spec = SPECS[0]
    first = subject.quantize(x, group_size=32, **spec)
    counts = {len(configs) for configs in subject.configurations().values()}
    assert counts == {7}
    for index in range(7):
        subject.pin(index)
        pinned = subject.pinned()
        assert all(pinned[name] == c[index] for name, c in subject.configurations().items())
        codes, scales = subject.quantize(x, group_size=32, **spec)
        assert_equal_bits(codes, first[0])
        assert_equal_bits(scales, first[1])


def test_the_subject_runs_on_every_kind_of_value_without_a_warning(subject: Any) -> None:
    # Warnings are errors here; NumPy would warn of overflow, division by 0, and NaN.
    specials = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3e38, -3e38, 1e-45]
    whole_groups = [value for value in specials for _ in range(32)]
    x = torch.tensor(specials * 8 + whole_groups)
    for spec in SPECS:
        codes, scales = subject.quantize(x, group_size=32, **spec)
        assert subject.dequantize(codes, scales, group_size=32, **spec).shape == x.shape
    narrow = x.to(torch.bfloat16)
    ecc = subject.compute_ecc(x, narrow, ecc_dtype=torch.int8)
    assert subject.reconstruct(narrow, ecc).shape == x.shape


def test_autotune_all_checks_every_configuration(
    cli: Cli, subject: Any, use_subject: Callable[[object], None], quant: Path
) -> None:
    use_subject(subject)
    ran = cli("run", quant, "--autotune", "all", "--json")
    assert ran.code == 0
    report = ran.json()
    assert set(report["subject"]["configurations"]) == set(subject.configurations())
    for case in report["cases"]:
        contract = next(c for c in case["contracts"] if c["name"] == "same_in_every_configuration")
        assert contract["ok"]
        assert "7" in contract["detail"]
    assert subject.pinned() == report["subject"]["configurations"]


class OneConfigurationIsWrong(ReferenceSubject):
    """A subject whose last configuration gets one code wrong."""

    def __init__(self) -> None:
        self.index = 0

    def configurations(self) -> dict[str, list[str]]:
        return {"kernel": ["small", "large", "broken"]}

    def pin(self, index: int) -> None:
        self.index = index

    def pinned(self) -> dict[str, str]:
        return {"kernel": self.configurations()["kernel"][self.index]}

    def quantize(self, x: torch.Tensor, **options: Any) -> Any:
        codes, scales = super().quantize(x, **options)
        if self.index == 2:
            codes[-1] = 100
        return codes, scales


@pytest.mark.parametrize(("autotune", "code"), [("all", 1), ("pinned", 0)])
def test_autotune_all_catches_a_wrong_configuration(
    cli: Cli, use_subject: Callable[[object], None], quant: Path, autotune: str, code: int
) -> None:
    subject = OneConfigurationIsWrong()
    use_subject(subject)
    ran = cli("run", quant, "--autotune", autotune, "--json")
    assert ran.code == code
    report = ran.json()
    assert report["subject"]["configurations"] == {"kernel": "small"}
    assert subject.index == 0
    if autotune == "all":
        for case in report["cases"]:
            assert case["status"] == "fail"
            assert "same_in_every_configuration" in case["reason"]
            assert "configuration 2" in case["reason"]


@pytest.fixture
def _as_it_was(interpreted: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Whatever another subject patches in the authors' module is taken back."""
    subject, _ = interpreted
    optimizers = importlib.import_module("flashoptim.optimizers")
    for name in ("_get_sm_count", "_compute_ecc_bits_kernel", "_reconstruct_fp32_kernel"):
        monkeypatch.setattr(optimizers, name, getattr(optimizers, name))
    yield optimizers
    subject.pin(0)


@pytest.mark.parametrize(
    ("elements", "block"),
    [
        (0, 1 << 12),
        (1 << 12, 1 << 12),
        ((1 << 12) + 1, 1 << 13),
        (1 << 17, 1 << 17),
        ((1 << 17) + 1, 1 << 17),
        (1 << 24, 1 << 17),
    ],
)
def test_a_block_is_no_larger_than_its_tensors_need(elements: int, block: int) -> None:
    from flashcheck.subjects import interpreter

    assert interpreter.block_for(elements) == block


@pytest.mark.usefixtures("interpreted")
def test_integers_overflow_as_on_a_gpu_and_no_time_is_spent_on_it() -> None:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_builder, interpreter_semantic

    assert not interpreter_builder.options.sanitize_overflow
    kind = tl.block_type(tl.int32, [1])
    most, one = (
        tl.tensor(TensorHandle(np.array([value], np.int32), tl.int32), kind)
        for value in ((1 << 31) - 1, 1)
    )
    assert interpreter_semantic.add(most, one, True).handle.data.tolist() == [-(1 << 31)]


@pytest.mark.parametrize("fault", ["skipped", "off by one"])
def test_a_block_size_that_changes_bits_is_refused(
    _as_it_was: Any,  # noqa: PT019
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    from flashcheck.subjects import interpreter
    from flashcheck.subjects.flashoptim import FlashOptim

    class Faulty:
        """A kernel that goes wrong in its last element once its blocks are larger."""

        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **options: Any) -> None:
                self.kernel[grid](*args, **options)
                out = args[2]
                out[-1] = 0 if fault == "skipped" else out[-1] + 1

            return launch

    def larger_blocks(module: Any, names: Any, argument: str) -> None:
        for name in names:
            setattr(module, name, Faulty(getattr(module, name)))

    monkeypatch.setattr(interpreter, "larger_blocks", larger_blocks)
    with pytest.raises(UnavailableError, match="block size"):
        FlashOptim(Backend.INTERPRETER)


@pytest.mark.usefixtures("_as_it_was")
def test_loading_again_gives_the_same_configurations(interpreted: Any) -> None:
    first, first_shims = interpreted
    second, second_shims = registry.load("flashoptim", "interpreter")
    assert second.configurations() == first.configurations()
    assert [shim.name for shim in second_shims] == [shim.name for shim in first_shims]


# ---- Nothing on disk is touched ------------------------------------------------------------


@pytest.mark.parametrize("package", ["flashoptim", "triton"])
def test_the_installed_package_is_as_it_was_published(interpreted: Any, package: str) -> None:
    files = importlib.metadata.files(package)
    assert files
    checked = 0
    for file in files:
        if file.hash is None or file.suffix != ".py":
            continue
        assert file.hash.mode == "sha256"
        digest = hashlib.sha256(Path(str(file.locate())).read_bytes()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value, file
        checked += 1
    assert checked >= 2


def test_the_subject_is_the_installed_package(subject: Any) -> None:
    assert subject.version == importlib.metadata.version("flashoptim")
    digest = hashlib.sha256()
    files = [f for f in importlib.metadata.files("flashoptim") or [] if f.suffix == ".py"]
    for file in sorted(files, key=str):
        digest.update(Path(str(file.locate())).read_bytes())
    assert subject.source_sha256 == digest.hexdigest()


# ---- The choice of a backend ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "gpu_here", "chosen"),
    [
        ("auto", True, Backend.CUDA),
        ("auto", False, Backend.INTERPRETER),
        ("interpreter", True, Backend.INTERPRETER),
        ("interpreter", False, Backend.INTERPRETER),
        ("cuda", True, Backend.CUDA),
    ],
)
def test_the_backend(
    monkeypatch: pytest.MonkeyPatch, requested: Any, gpu_here: bool, chosen: Backend
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu_here)
    assert backend.choose(requested) is chosen


def test_cuda_without_a_gpu_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnavailableError, match="--backend interpreter"):
        backend.choose("cuda")


@pytest.mark.usefixtures("interpreted")
def test_triton_cannot_be_both() -> None:
    with pytest.raises(UnavailableError, match="TRITON_INTERPRET"):
        backend.prepare(Backend.CUDA)


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(UnavailableError, match="pip install triton"):
        backend.prepare(Backend.INTERPRETER)


class Driver:
    """A stand-in for libcuda."""

    def __init__(self, *, init: int = 0, count: int = 1) -> None:
        self._init, self._count = init, count

    def cuInit(self, _: int) -> int:  # noqa: N802
        return self._init

    def cuDeviceGetCount(self, number: Any) -> int:  # noqa: N802
        number._obj.value = self._count
        return 0


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (None, "no NVIDIA driver is installed"),
        (Driver(init=100), "the NVIDIA driver finds no GPU"),
        (Driver(count=0), "the NVIDIA driver finds no GPU"),
        (Driver(), None),
    ],
)
def test_why_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, driver: Driver | None, reason: str | None
) -> None:
    def load(_: str) -> Driver:
        if driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert gpu.why_none() == reason
