"""What the YAML files say: the three suites as required, and that a file really defines its run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from flashcheck import config
from flashcheck.config import Gate, QuantizationConfig, SplittingConfig
from flashcheck.errors import ConfigError
from flashcheck.measures import QuantizationMetrics, SplittingMetrics
from tests.conftest import CHECKOUT
from tests.fakes import QUANT, SPLIT, changed

BUILT_IN = sorted((CHECKOUT / "configs").glob("*.yaml"))


def loaded(name: str) -> config.SuiteConfig:
    return config.load(CHECKOUT / "configs" / f"{name}.yaml")


def own(tmp_path: Path, text: str) -> config.SuiteConfig:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    return config.load(path)


def limits(suite: config.SuiteConfig) -> set[tuple[str, str, float]]:
    return {(gate.metric, gate.op, gate.limit) for gate in suite.gates}


@pytest.mark.parametrize("path", BUILT_IN, ids=lambda path: path.stem)
def test_a_built_in_suite_is_named_as_its_file_and_gives_reasons(path: Path) -> None:
    suite = config.load(path)
    assert suite.suite == path.stem
    assert suite.description
    for gate in suite.gates:
        assert len(gate.reason) > 20, gate.metric
    for deviation in suite.known_deviations:
        assert len(deviation.reason) > 20, deviation.case


def test_quant_is_seven_tensors_under_two_specs() -> None:
    quant = loaded("quant")
    assert isinstance(quant, QuantizationConfig)
    assert (quant.seed, quant.group_size) == (7, 32)
    assert {t.name: t.size for t in quant.battery} == {
        "normal": 2**20,
        "heavy_tail": 2**20,
        "tiny": 2**16,
        "adam_v_like": 2**20,
        "nonmult32": 2**16 + 17,
        "const_groups": 2**12,
        "with_zeros": 2**16,
    }
    assert {spec.name: (spec.options(), spec.absolute) for spec in quant.specs} == {
        "momentum": ({"signed": True, "sqrt": False, "softsign": True}, False),
        "variance": ({"signed": False, "sqrt": True, "softsign": False}, True),
    }
    assert len(quant.case_names()) == 14


def test_quant_has_the_required_gates() -> None:
    assert limits(loaded("quant")) >= {
        ("int_within_1", ">=", 1.0),
        ("int_agree", ">=", 0.9999),
        ("scale_agree", ">=", 0.999),
        ("nmse_ratio", ">=", 0.999),
        ("nmse_ratio", "<=", 1.001),
        ("nonfinite_disagree", "==", 0),
    }


def test_only_tiny_momentum_is_known_to_deviate_by_the_absmax_floor() -> None:
    (known,) = loaded("quant").known_deviations
    assert (known.subject, known.case) == ("flashoptim", "tiny/momentum")
    assert "1e-12" in known.reason


@pytest.mark.parametrize(
    ("name", "formats", "signs", "rho_limit"),
    [("ecc", "bf16+int8", "both", 0.9999), ("int16", "bf16+int16", "positive", 0.999)],
)
def test_a_sweep_is_64_exponents_of_65536_values(
    name: str, formats: str, signs: str, rho_limit: float
) -> None:
    suite = loaded(name)
    assert isinstance(suite, SplittingConfig)
    assert suite.seed == 11
    assert suite.sweep.exponents.fields() == list(range(1, 254, 4))
    assert (suite.sweep.samples, suite.sweep.signs) == (2**16, signs)
    assert suite.case_names() == [formats]
    assert suite.known_deviations == []
    required = {("rho_agree_frac", ">=", rho_limit), ("nonfinite_disagree", "==", 0)}
    assert limits(suite) >= required


def test_int16_is_drawn_after_ecc() -> None:
    ecc, int16 = loaded("ecc"), loaded("int16")
    assert isinstance(ecc, SplittingConfig)
    assert isinstance(int16, SplittingConfig)
    assert ecc.drawn_after == []
    assert int16.drawn_after == [ecc.sweep]


@pytest.mark.parametrize(
    ("op", "below", "at", "above"),
    [(">=", False, True, True), ("<=", True, True, False), ("==", False, True, False)],
)
def test_a_gate_holds_or_not(op: str, below: bool, at: bool, above: bool) -> None:
    gate = Gate.model_validate({"metric": "int_agree", "op": op, "limit": 0.5, "reason": "r"})
    assert (gate.holds(0.4999), gate.holds(0.5), gate.holds(0.5001)) == (below, at, above)


@pytest.mark.parametrize("op", [">=", "<=", "=="])
@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_figure_that_does_not_exist_breaks_every_gate(op: str, value: float | None) -> None:
    gate = Gate.model_validate({"metric": "nmse_ratio", "op": op, "limit": 0.0, "reason": "r"})
    assert not gate.holds(value)


@pytest.mark.parametrize("reason", ["  reason: ''", ""])
def test_a_gate_needs_a_reason(tmp_path: Path, reason: str) -> None:
    line = "    reason: overflow is a property of the format\n"
    with pytest.raises(ConfigError, match="reason"):
        own(tmp_path, changed(QUANT, line, f"  {reason}\n" if reason else ""))


def test_numbers_may_be_written_as_integers_or_with_an_exponent(tmp_path: Path) -> None:
    suite = own(tmp_path, changed(QUANT, "sigma: 2.0", "sigma: 2"))
    assert isinstance(suite, QuantizationConfig)
    text = changed(QUANT, "    size: 200", "    size: 200\n    scale: 1e-20")
    other = own(tmp_path, text)
    assert isinstance(other, QuantizationConfig)
    assert getattr(other.battery[0], "scale") == 1e-20  # noqa: B009


@pytest.mark.parametrize(
    ("start", "stop", "step", "fields"),
    [
        (0, 256, 1, list(range(256))),
        (0, 1, 1, [0]),
        (255, 256, 1, [255]),
        (1, 256, 4, list(range(1, 254, 4))),
        (10, 20, 100, [10]),
    ],
)
def test_exponents(tmp_path: Path, start: int, stop: int, step: int, fields: list[int]) -> None:
    text = changed(SPLIT, "start: 1", f"start: {start}")
    text = changed(changed(text, "stop: 255", f"stop: {stop}"), "step: 60", f"step: {step}")
    suite = own(tmp_path, text)
    assert isinstance(suite, SplittingConfig)
    assert suite.sweep.exponents.fields() == fields


def test_the_digest_depends_on_what_the_file_says_and_not_on_how(tmp_path: Path) -> None:
    base = own(tmp_path, QUANT)
    assert config.digest(base) == config.digest(own(tmp_path, "# a comment\n" + QUANT))
    spelled_out = changed(QUANT, "group_size: 32\n", "")
    assert config.digest(base) == config.digest(own(tmp_path, spelled_out))
    digests = {
        config.digest(own(tmp_path, changed(QUANT, old, new)))
        for old, new in [
            ("seed: 7", "seed: 8"),
            ("size: 200", "size: 201"),
            ("limit: 0.9999", "limit: 0.999"),
            ("sigma: 2.0", "sigma: 2.5"),
            ("absolute: true", "absolute: false"),
        ]
    }
    assert len(digests | {config.digest(base)}) == 6


def test_a_suite_cannot_be_changed_after_it_is_read(tmp_path: Path) -> None:
    suite = own(tmp_path, QUANT)
    with pytest.raises(ValidationError):
        suite.seed = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("base", "metric"),
    [(QUANT, name) for name in QuantizationMetrics.names()]
    + [(SPLIT, name) for name in SplittingMetrics.names()],
)
def test_every_metric_of_its_kind_can_be_gated(tmp_path: Path, base: str, metric: str) -> None:
    gate = f'  - {{metric: {metric}, op: ">=", limit: 0, reason: why not}}\n'
    suite = own(tmp_path, base + gate)
    assert (metric, ">=", 0) in limits(suite)
