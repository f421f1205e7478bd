"""The smallest input that shows a mismatch, with a script that needs no flashcheck.

The input is made again from the report's own configuration and checked against the digest that the
report keeps. Where the subject can run here, the smallest candidate that still shows a difference
is taken: one group or value, else the whole input.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

import numpy as np
import torch

from flashcheck import config as configuration
from flashcheck.config import (
    EdgeConfig,
    ExhaustiveConfig,
    QuantizationConfig,
    QuantizationSpec,
    SplitFormats,
    SplittingConfig,
    StepConfig,
    SuiteConfig,
)
from flashcheck.errors import ReportError, UnavailableError, UsageError, did_you_mean
from flashcheck.formats import ECC_FORMATS, NARROW_FORMATS, torch_dtype
from flashcheck.inputs import battery, sweeps
from flashcheck.reference import quantization, splitting
from flashcheck.report.models import CaseResult, Offender, Report
from flashcheck.subjects.base import Subject
from flashcheck.suites.base import InputDigest
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.splitting import toward_zero

INPUT = "input.npz"
SCRIPT = "repro.py"


@dataclass(frozen=True)
class Reproduction:
    """An input and what the reference makes of it.

    Attributes:
        arrays: float32 inputs by name, and the reference's outputs as ``expected_NAME``.
        call: the script's lines that call the subject and name its outputs.
        verified: whether the subject was seen to differ on it here; none if it cannot run here.
    """

    arrays: dict[str, np.ndarray]
    call: str
    verified: bool | None


def reproduce(report: Report, case_name: str, subject: Subject | None) -> Reproduction:
    """The smallest input that shows a case's worst mismatch.

    Args:
        subject: to see whether a smaller input still shows it; none if it cannot run here.

    Raises:
        UsageError: the report has no such case, or the case has no mismatch.
        ReportError: the input cannot be made again here.
    """
    case = _case(report, case_name)
    config = configuration.parse(report.config)
    form = case_name.rsplit("/", maxsplit=1)[-1]
    made: Reproduction | None = None
    for candidate in _candidates(report, case, config, form):
        made = candidate if subject is None else _verified(candidate, subject)
        if made.verified is not False:
            return made
    assert made
    return made


def write(reproduction: Reproduction, report: Report, case: str, preamble: str, out: Path) -> None:
    """Write the input and the script into a folder.

    Args:
        preamble: the lines that make ``subject`` without flashcheck.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        np.savez(out / INPUT, **reproduction.arrays)  # type: ignore[arg-type]
        text = _SCRIPT.substitute(
            case=f"{report.suite} {case}",
            subject=f"{report.subject.name} {report.subject.version}",
            backend=report.environment.backend,
            preamble=preamble.strip(),
            call=reproduction.call.strip(),
            input=INPUT,
        )
        (out / SCRIPT).write_text(text, encoding="utf-8")
        file = Path(report.subject.origin.rpartition(":")[0])
        if file.suffix == ".py" and file.is_file():
            shutil.copyfile(file, out / "subject_under_test.py")
    except OSError as error:
        raise UsageError(
            f"--out {out}: cannot be written: {error.strerror}; name another"
        ) from None


def _case(report: Report, name: str) -> CaseResult:
    names = [case.case for case in report.cases]
    if name not in names:
        raise UsageError(f"the report has no case '{name}'; {did_you_mean(name, names)}")
    case = report.cases[names.index(name)]
    if case.mismatches is None or not case.mismatches.worst:
        raise UsageError(f"case {name} has no mismatch to reproduce; name one that has")
    return case


def _candidates(
    report: Report, case: CaseResult, config: SuiteConfig, form: str
) -> Iterator[Reproduction]:
    """Inputs that may show the worst mismatch, the smallest first."""
    if isinstance(config, ExhaustiveConfig):
        yield from _enumerated_candidates(case, config, form)
    elif isinstance(config, SplittingConfig):
        yield from _sweep_candidates(report, case, config, form)
    elif isinstance(config, StepConfig):
        raise UsageError(
            f"case {case.case}: a step is of a whole state; the report's config and seed draw it "
            "again, and 'worst' has what an element was computed from"
        )
    else:
        yield from _tensor_candidates(report, case, config, form)


def _enumerated_candidates(
    case: CaseResult, config: ExhaustiveConfig, form: str
) -> Iterator[Reproduction]:
    """The worst input itself: its bits are all there is to it."""
    function = case.case.split("/", maxsplit=1)[0]
    if function not in ("compute_ecc", "quantize"):
        raise UsageError(
            f"case {case.case}: its inputs are pairs; 'worst' in the report has the bits of each"
        )
    pattern = torch.tensor(int(_worst(case).input_bits, 16)).to(torch.int32)
    x = pattern.view(torch.float32).reshape(1)
    if function == "compute_ecc":
        yield _splitting(x, next(pair for pair in config.formats if pair.case == form))
    else:
        spec = next(spec for spec in config.specs if spec.name == form)
        yield _quantization(torch.cat([torch.ones(1), x]), spec, config)


def _sweep_candidates(
    report: Report, case: CaseResult, config: SplittingConfig, form: str
) -> Iterator[Reproduction]:
    strata = sweeps.draw(config.sweep, seed=config.seed, drawn_after=config.drawn_after)
    parts = [part.values.reshape(-1) for part in strata]
    _check_digest(report, case, *parts)
    pair = next(pair for pair in config.formats if pair.case == form)
    index = _worst(case).index
    for part in parts:
        if index < part.numel():
            yield _splitting(part[index].reshape(1), pair)
            # Else what the run gave the subject in one call.
            yield _splitting(part, pair)
            return
        index -= part.numel()


def _tensor_candidates(
    report: Report, case: CaseResult, config: QuantizationConfig | EdgeConfig, form: str
) -> Iterator[Reproduction]:
    worst = _worst(case)
    tensor = case.case.rsplit("/", maxsplit=1)[0]
    drawn = next(iter(battery.draw(config.battery, seed=config.seed, selected=[tensor])))
    for pair in config.formats if isinstance(config, EdgeConfig) else []:
        if pair.case == form:
            _check_digest(report, case, drawn.values)
            yield _splitting(drawn.values[worst.index].reshape(1), pair)
            yield _splitting(drawn.values, pair)
            return
    spec = next(spec for spec in config.specs if spec.name == form)
    values = drawn.values.abs() if spec.absolute else drawn.values
    _check_digest(report, case, values)
    size = config.group_size
    group = worst.index if worst.output == "scales" else worst.index // size
    if drawn.tensor.layout == "contiguous":
        yield _quantization(values[group * size : (group + 1) * size], spec, config)
    yield _quantization(values, spec, config, drawn)


def _worst(case: CaseResult) -> Offender:
    assert case.mismatches
    return case.mismatches.worst[0]


def _check_digest(report: Report, case: CaseResult, *parts: torch.Tensor) -> None:
    if InputDigest(*parts).hexdigest() != case.input_sha256:
        raise ReportError(
            f"{report.suite} {case.case}: its input cannot be made again here: torch "
            f"{torch.__version__} draws other values than torch {report.environment.torch} did"
        )


def _quantization(
    x: torch.Tensor,
    spec: QuantizationSpec,
    config: QuantizationConfig | EdgeConfig | ExhaustiveConfig,
    drawn: battery.Drawn | None = None,
) -> Reproduction:
    size, options = config.group_size, spec.options()
    codes, scales = quantization.quantize(x, group_size=size, **options)
    values = quantization.dequantize(codes, scales, group_size=size, **options)
    words = ", ".join(f"{key}={value}" for key, value in options.items())
    layout = _LAYOUTS[drawn.tensor.layout] if drawn else ""
    shape = drawn.tensor.shape if drawn and drawn.tensor.shape is not None else [x.numel()]
    return Reproduction(
        arrays={
            # bfloat16 is no NumPy dtype; float32 holds it exactly.
            "x": x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy(),
            "expected_codes": codes.numpy(),
            "expected_scales": scales.numpy(),
            "expected_values": values.numpy(),
        },
        call=_QUANTIZE.substitute(
            dtype=x.dtype, shape=tuple(shape), layout=layout, options=words, size=size
        ),
        verified=None,
    )


def _splitting(x: torch.Tensor, pair: SplitFormats) -> Reproduction:
    narrow_dtype = torch_dtype(NARROW_FORMATS[pair.narrow])
    ecc_dtype = torch_dtype(ECC_FORMATS[pair.ecc])
    narrow = x.to(narrow_dtype)
    if pair.rounding == "toward_zero":
        narrow = toward_zero(x, narrow)
    rho = splitting.encode(x, narrow, ecc_dtype)
    return Reproduction(
        arrays={
            "x": x.numpy(),
            "narrow": narrow.float().numpy(),
            "expected_rho": rho.numpy(),
            "expected_values": splitting.decompress(narrow, rho).numpy(),
        },
        call=_SPLIT.substitute(narrow=narrow_dtype, ecc=ecc_dtype),
        verified=None,
    )


def _verified(candidate: Reproduction, subject: Subject) -> Reproduction:
    """Run the script's call here, and see whether any output differs."""
    calls = SubjectCalls(subject)
    names = {
        "torch": torch,
        "subject": subject,
        "device": str(calls.to_device(torch.empty(0)).device),
    }
    arrays = {key: torch.from_numpy(value) for key, value in candidate.arrays.items()}
    scope: dict[str, object] = {**names, "data": arrays}
    try:
        # The very lines that the script will run, on arrays that were made above.
        exec(candidate.call, scope)  # noqa: S102
    except Exception:  # noqa: BLE001 - a subject that raises does differ
        return Reproduction(candidate.arrays, candidate.call, True)
    outputs = scope["outputs"]
    assert isinstance(outputs, dict)
    differs = any(
        not torch.equal(
            value.reshape(-1).cpu().view(torch.uint8),
            arrays[f"expected_{name}"].reshape(-1).view(torch.uint8),
        )
        for name, value in outputs.items()
    )
    return Reproduction(candidate.arrays, candidate.call, differs)


def preamble_of(subject: Subject | None, report: Report) -> str:
    """The lines that make ``subject`` where flashcheck is not installed.

    Raises:
        UnavailableError: the subject can only be made here, and cannot.
    """
    origin, backend = report.subject.origin, report.environment.backend
    if origin.rpartition(":")[0].endswith(".py"):
        file, _, attribute = origin.rpartition(":")
        if not Path(file).is_file():
            raise UnavailableError(
                f"the subject's file {file} is not here; run this in the folder that the report "
                "was made in"
            )
        return _FILE.substitute(name=attribute, backend=backend)
    if origin == "plugin":
        return _PLUGIN.substitute(name=report.subject.name, backend=backend)
    standalone = getattr(subject, "standalone", None)
    if standalone is None:
        raise UnavailableError(
            f"the subject {report.subject.name} cannot run here, so no script can be made for it; "
            f"run this where its backend '{report.environment.backend}' is"
        )
    return str(standalone())


_LAYOUTS = {
    "contiguous": "",
    "transposed": "x = x.t().contiguous().t()\n",
    "every_second": ("spaced = x.new_zeros(2 * x.numel())\nspaced[::2] = x\nx = spaced[::2]\n"),
}

_QUANTIZE = Template("""
x = data["x"].to(device).to($dtype).reshape($shape).clone()
${layout}options = dict($options, group_size=$size)
codes, scales = subject.quantize(x, **options)
outputs = {
    "codes": codes,
    "scales": scales,
    "values": subject.dequantize(codes, scales, **options),
}
""")

_SPLIT = Template("""
x = data["x"].to(device)
narrow = data["narrow"].to(device).to($narrow)
rho = subject.compute_ecc(x, narrow, ecc_dtype=$ecc)
outputs = {"rho": rho, "values": subject.reconstruct(narrow, rho)}
""")

_FILE = Template("""
import inspect

import subject_under_test

factory = subject_under_test.$name
takes_backend = "backend" in inspect.signature(factory).parameters
subject = factory(backend="$backend") if takes_backend else factory()
device = getattr(subject, "device", "cpu")
""")

_PLUGIN = Template("""
import inspect
from importlib.metadata import entry_points

(point,) = entry_points(group="flashcheck.subjects", name="$name")
factory = point.load()
takes_backend = "backend" in inspect.signature(factory).parameters
subject = factory(backend="$backend") if takes_backend else factory()
device = getattr(subject, "device", "cpu")
""")

_SCRIPT = Template('''"""$case: $subject on $backend, beside what the paper's algorithms give.

Needs the subject and its own packages, not flashcheck. The expected outputs in $input are those of
an eager reference in the paper's literal arithmetic, made when this script was.
"""

from pathlib import Path

import numpy as np

$preamble

import torch

with np.load(Path(__file__).parent / "$input", allow_pickle=False) as arrays:
    data = {name: torch.from_numpy(array) for name, array in arrays.items()}

$call

integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
differing = 0
for name, output in outputs.items():
    got = output.reshape(-1).cpu()
    expected = data[f"expected_{name}"].reshape(-1)
    bits = integers[expected.element_size()]
    same = (got.view(bits) == expected.view(bits)) | (got.isnan() & expected.isnan())
    wrong = (~same).nonzero().reshape(-1)
    differing += len(wrong)
    print(f"{name}: {len(wrong)} of {len(got)} differ")
    for i in wrong[:5].tolist():
        print(f"  [{i}] subject {got[i].item()!r}, reference {expected[i].item()!r}")
raise SystemExit(1 if differing else 0)
''')
