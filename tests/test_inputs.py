"""What is fed: the bits of the script that the tool grew from, whatever is selected."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcheck import config
from flashcheck.inputs import sweeps
from tests.conftest import CHECKOUT, Cli
from tests.fakes import QUANT, SPLIT, ReferenceSubject, changed

NORMALS_SHARED_BY = ("AVX2", "AVX512")
CAPABILITY = torch.backends.cpu.get_cpu_capability()

# sha256 of the little-endian float32 bytes, of torch 2.13 on x86 with AVX2 or AVX-512. The normal
# values are the same on both; heavy_tail is made with torch.exp, which gives other last bits on a
# CPU of AMD than on one of Intel.
BATTERY_SHA256 = {
    "normal": "048e6a85a0ced2cc2d83ee1f69ba5de1b6480d9b1aa602d9ea5c9b65c304afae",
    "heavy_tail": (
        "a161932a9aaedbf7d86e9505a65b1704afe7351a12dc927deb1305b7716857d3 "
        "2c5d2f31c834dfeef65482d1333d1624d766917b947ea8cedfd5bd6619b641d9"
    ),
    "tiny": "343878bacd930daa048e4e423474ac09235a0c8994b8df7e0c6d3114eaba7380",
    "adam_v_like": "692c33ae2512566a960630410499c996193ee39151dc15b62f6bef02dceb862d",
    "nonmult32": "6611a416d810f17624f3588e6da9147171246a62615a2811a8b782cb0d334c91",
    "const_groups": "5021ac1c2a0ecf39eedd3337fd351e5d7874b08d39ea7624468b7329f6aec557",
    "with_zeros": "d179646ba3caf88a2b2613f8459626584780cb6fe575f397b21b4807b0e32a0b",
}
SWEEP_SHA256 = {
    "ecc": "839644d06aebf8690265d5463d3198150103f3ca80e18aa1043624dc544377b9",
    "int16": "d0cced82d96651fd3aba5a1f94b169893f9c74d7fec3f5ba80a913e716af8900",
}


def sha256(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        assert tensor.dtype == torch.float32
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


@cache
def battery_of_the_issue() -> dict[str, torch.Tensor]:
    """The formulas of the requirements, in their order, from one generator seeded 7."""
    g = torch.Generator(device="cpu").manual_seed(7)

    def randn(n: int) -> torch.Tensor:
        return torch.randn(n, generator=g)

    normal = randn(2**20)
    factor = randn(2**20)
    heavy_tail = factor * torch.exp(3 * randn(2**20))
    tiny = 1e-20 * randn(2**16)
    adam_v_like = (1e-3 * randn(2**20)) ** 2
    nonmult32 = randn(2**16 + 17)
    const_groups = torch.ones(2**12) * 0.37
    zero = torch.rand(2**16, generator=g) < 0.3
    with_zeros = torch.where(zero, torch.zeros(()), randn(2**16))
    return {
        "normal": normal,
        "heavy_tail": heavy_tail,
        "tiny": tiny,
        "adam_v_like": adam_v_like,
        "nonmult32": nonmult32,
        "const_groups": const_groups,
        "with_zeros": with_zeros,
    }


def sweeps_of_the_issue() -> dict[str, torch.Tensor]:
    """Both sweeps from one generator seeded 11: of each, 64 buckets of 2^16 values."""
    g = torch.Generator(device="cpu").manual_seed(11)
    buckets = range(1, 254, 4)

    def randint(high: int) -> torch.Tensor:
        return torch.randint(0, high, (2**16,), dtype=torch.int32, generator=g)

    ecc = []
    for bucket in buckets:
        mantissa = randint(2**23)
        sign = randint(2)
        ecc.append(((sign << 31) | (bucket << 23) | mantissa).view(torch.float32))
    int16 = [((bucket << 23) | randint(2**23)).view(torch.float32) for bucket in buckets]
    assert len(ecc) == len(int16) == 64
    return {"ecc": torch.cat(ecc), "int16": torch.cat(int16)}


class Recorder(ReferenceSubject):
    """Keeps what it is given, and stops there, so that a full-size run costs nothing."""

    def __init__(self) -> None:
        self.fed: list[torch.Tensor] = []

    def quantize(self, x: torch.Tensor, **_: Any) -> Any:
        self.fed.append(x.clone())
        raise NotImplementedError("recorded")


def recorded(cli: Cli, use_subject: Any, *words: str) -> dict[str, torch.Tensor]:
    recorder = Recorder()
    use_subject(recorder)
    ran = cli("run", *words, "--json")
    cases = [case["case"] for case in ran.json()["cases"]]
    assert len(cases) == len(recorder.fed)
    return dict(zip(cases, recorder.fed, strict=True))


def test_the_battery_is_fed_bit_for_bit(cli: Cli, use_subject: Any) -> None:
    fed = recorded(cli, use_subject, "quant")
    expected = battery_of_the_issue()
    assert list(fed) == [f"{name}/{spec}" for name in expected for spec in ("momentum", "variance")]
    for name, tensor in expected.items():
        assert sha256(fed[f"{name}/momentum"]) == sha256(tensor), name
        assert sha256(fed[f"{name}/variance"]) == sha256(tensor.abs()), name


@pytest.mark.parametrize("name", list(BATTERY_SHA256))
def test_a_tensor_alone_has_the_bits_of_the_full_run(cli: Cli, use_subject: Any, name: str) -> None:
    fed = recorded(cli, use_subject, "quant", "--battery", name)
    assert list(fed) == [f"{name}/momentum", f"{name}/variance"]
    assert sha256(fed[f"{name}/momentum"]) == sha256(battery_of_the_issue()[name])


def test_the_order_on_the_command_line_does_not_matter(cli: Cli, use_subject: Any) -> None:
    fed = recorded(
        cli, use_subject, "quant", "--battery", "with_zeros", "--battery", "tiny", "--spec",
        "momentum",
    )  # fmt: skip
    assert list(fed) == ["tiny/momentum", "with_zeros/momentum"]
    expected = battery_of_the_issue()
    assert sha256(*fed.values()) == sha256(expected["tiny"], expected["with_zeros"])


@pytest.mark.skipif(
    CAPABILITY not in NORMALS_SHARED_BY,
    reason=f"torch draws other normal values with its {CAPABILITY} code than with AVX2 or AVX-512",
)
@pytest.mark.parametrize("name", list(BATTERY_SHA256))
def test_a_tensor_has_the_committed_digest(cli: Cli, use_subject: Any, name: str) -> None:
    fed = recorded(cli, use_subject, "quant", "--battery", name, "--spec", "momentum")
    assert sha256(fed[f"{name}/momentum"]) in BATTERY_SHA256[name].split()


def drawn(suite: str) -> Iterator[torch.Tensor]:
    loaded = config.load(CHECKOUT / "configs" / f"{suite}.yaml")
    assert isinstance(loaded, config.SplittingConfig)
    for strata in sweeps.draw(loaded.sweep, seed=loaded.seed, drawn_after=loaded.drawn_after):
        yield strata.values


@pytest.mark.parametrize("suite", list(SWEEP_SHA256))
def test_a_sweep_has_the_committed_digest(suite: str) -> None:
    # Integers are drawn alike on every machine. int16 alone: nothing has drawn ecc before it here.
    assert sha256(*drawn(suite)) == SWEEP_SHA256[suite]


def test_the_sweeps_are_those_of_the_issue_one_after_the_other() -> None:
    for suite, expected in sweeps_of_the_issue().items():
        assert sha256(*drawn(suite)) == sha256(expected), suite


def test_each_stratum_has_its_exponent_and_both_signs() -> None:
    loaded = config.load(CHECKOUT / "configs" / "ecc.yaml")
    assert isinstance(loaded, config.SplittingConfig)
    exponents = []
    for strata in sweeps.draw(loaded.sweep, seed=loaded.seed, drawn_after=[]):
        exponents += strata.exponents
        bits = strata.values.view(torch.int32)
        fields = (bits >> 23) & 0xFF
        assert torch.equal(fields, torch.tensor(strata.exponents)[:, None].expand_as(fields))
        negative = (bits < 0).float().mean(dim=1)
        assert bool(((negative > 0.48) & (negative < 0.52)).all())
    assert exponents == list(range(1, 254, 4))


class Kept(ReferenceSubject):
    """The reference, keeping what it is given."""

    def __init__(self) -> None:
        self.fed: dict[torch.dtype, list[torch.Tensor]] = {}

    def compute_ecc(self, x: torch.Tensor, narrow: torch.Tensor, *, ecc_dtype: torch.dtype) -> Any:
        self.fed.setdefault(ecc_dtype, []).append(x.clone())
        return super().compute_ecc(x, narrow, ecc_dtype=ecc_dtype)


def test_a_sweep_feeds_what_it_draws_and_reports_its_digest(
    cli: Cli, use_subject: Any, split: Path
) -> None:
    kept = Kept()
    use_subject(kept)
    cases = cli("run", split, "--json").json()["cases"]
    g = torch.Generator(device="cpu").manual_seed(11)
    expected = []
    for exponent in (1, 61, 121, 181, 241):
        mantissa = torch.randint(0, 2**23, (64,), dtype=torch.int32, generator=g)
        sign = torch.randint(0, 2, (64,), dtype=torch.int32, generator=g)
        expected.append(((sign << 31) | (exponent << 23) | mantissa).view(torch.float32))
    assert {case["input_sha256"] for case in cases} == {sha256(*expected)}
    for fed in kept.fed.values():
        # A call may be repeated; each is of the same values.
        assert {sha256(x.reshape(-1)) for x in fed} == {sha256(*expected)}


def test_a_battery_reports_the_digest_of_what_it_feeds(
    cli: Cli, use_subject: Any, quant: Path
) -> None:
    use_subject(ReferenceSubject())
    g = torch.Generator(device="cpu").manual_seed(7)
    plain = torch.randn(200, generator=g)
    skewed = torch.randn(97, generator=g) * torch.exp(torch.randn(97, generator=g) * 2.0)
    cases = cli("run", quant, "--json").json()["cases"]
    reported = {case["case"]: case["input_sha256"] for case in cases}
    assert reported == {
        "plain/momentum": sha256(plain),
        "plain/variance": sha256(plain.abs()),
        "skewed/momentum": sha256(skewed),
        "skewed/variance": sha256(skewed.abs()),
    }


@pytest.mark.parametrize(
    ("generator", "expected"),
    [
        ("normal, size: 40, scale: 2.5", lambda g: torch.randn(40, generator=g) * 2.5),
        (
            "normal_times_lognormal, size: 40, sigma: 0.5",
            lambda g: torch.randn(40, generator=g) * torch.exp(torch.randn(40, generator=g) * 0.5),
        ),
        (
            "squared_normal, size: 40, scale: 3.0",
            lambda g: (torch.randn(40, generator=g) * 3.0) ** 2,
        ),
        ("constant, size: 40, value: 0.1", lambda _: torch.full((40,), 0.1)),
        (
            "zero_inflated_normal, size: 40, zero_probability: 0.5",
            lambda g: torch.where(
                torch.rand(40, generator=g) < 0.5, torch.zeros(()), torch.randn(40, generator=g)
            ),
        ),
    ],
)
def test_the_yaml_sets_each_generators_parameters(
    cli: Cli, use_subject: Any, tmp_path: Path, generator: str, expected: Any
) -> None:
    text = changed(
        QUANT,
        "  - name: plain\n    generator: normal\n    size: 200\n",
        f"  - {{name: plain, generator: {generator}}}\n",
    )
    (tmp_path / "own.yaml").write_text(changed(text, "seed: 7", "seed: 12345"))
    fed = recorded(cli, use_subject, "own.yaml", "--battery", "plain", "--spec", "momentum")
    g = torch.Generator(device="cpu").manual_seed(12345)
    assert sha256(fed["plain/momentum"]) == sha256(expected(g))


def test_the_yaml_sets_a_sweeps_stride_samples_and_signs(
    cli: Cli, use_subject: Any, tmp_path: Path
) -> None:
    text = changed(SPLIT, "step: 60", "step: 100")
    text = changed(text, "samples: 64", "samples: 10")
    (tmp_path / "own.yaml").write_text(changed(text, "signs: both", "signs: positive"))
    kept = Kept()
    use_subject(kept)
    case = cli("run", "own.yaml", "--json").json()["cases"][0]
    assert [(row["exponent"], row["n"]) for row in case["strata"]] == [
        (1, 10),
        (101, 10),
        (201, 10),
    ]
    assert bool((kept.fed[torch.int8][0] > 0).all())
