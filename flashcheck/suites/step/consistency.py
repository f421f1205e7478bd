"""Whether a step computes what the same subject's functions compute, on the same values.

A step carries copies of that arithmetic of its own. With chosen hyperparameters it shows them one
by one: where ``beta`` is 0 what is stored is the gradient, quantized; where momentum is 1, the
gradient 0 and the weights 0, the new weights are the momentum, dequantized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashcheck.compare.attribution import Best, Explanation
from flashcheck.compare.bounds import OperationBounds
from flashcheck.compare.optimizers import StepCase, explain
from flashcheck.compare.settings import LITERAL
from flashcheck.config import QuantizationSpec, StepConfig
from flashcheck.formats import ECC_FORMATS, torch_dtype
from flashcheck.optimizers import GROUP_SIZE, SPECS, Hyperparameters, Optimizer, State
from flashcheck.suites import explaining
from flashcheck.suites.base import Measured
from flashcheck.suites.calls import SubjectCalls
from flashcheck.suites.step import single, states

METHODS = ("quantize", "dequantize", "compute_ecc", "reconstruct", "step")


@dataclass(frozen=True)
class Probe:
    """A step that shows an inline copy.

    Attributes:
        functions: what the subject's functions make of the same values, by the name of the stored
            tensor that the step shows it in.
    """

    before: State
    grad: torch.Tensor
    hyper: Hyperparameters
    functions: Callable[[SubjectCalls], State]


def measure(
    measured: Measured,
    config: StepConfig,
    operations: OperationBounds,
    calls: SubjectCalls,
) -> Measured:
    """Compare the inline copy that a case is named after.

    Raises:
        SubjectError: the subject raised, or broke its protocol.
    """
    _, function, form = measured.case.split("/")
    generator = torch.Generator().manual_seed(config.seed)
    values = torch.randn(config.gradients[0].size, generator=generator)
    values *= torch.exp(torch.randn(values.numel(), generator=generator))
    probe = _PROBES[function](values, form)
    stored, contracts = calls.step(probe.before, probe.grad, probe.hyper)
    theirs = probe.functions(calls)
    shown = {name: stored[name] for name in theirs}
    case = StepCase(probe.before, probe.grad, probe.hyper, shown, operations, against=theirs)
    explanation = explain(case)
    measured.contracts = contracts
    single.fill(measured, case, explanation)
    measured.mismatches = explaining.record(
        explanation,
        Best(LITERAL, explanation.total(), []),
        outputs=single.outputs(shown),
        distances=single.distances(case),
    ).model_copy(update={"sentence": _sentence(explanation, single.outputs(shown))})
    return measured


def _sentence(explanation: Explanation, outputs: int) -> str:
    total, left = explanation.total(), explaining.unexplained(explanation)
    if not total:
        return "the step's copy gives the bits of the function"
    words = f"{left:,} unexplained" if left else "each has a cause"
    return f"{total:,} of {outputs:,} outputs of the step's copy are not the function's; {words}"


def _zeros(values: torch.Tensor, dtype: torch.dtype, *moments: str) -> State:
    made = {"param": torch.zeros(values.numel(), dtype=dtype)}
    for moment in moments:
        made |= states.stored_moment(moment, torch.zeros(values.numel()), "quantized", dtype)
    return made


def _spec(moment: str) -> QuantizationSpec:
    return QuantizationSpec(name=moment, **SPECS[moment])


def _quantized(calls: SubjectCalls, moment: str, values: torch.Tensor) -> State:
    (codes, scales), _ = calls.quantize(values, _spec(moment), GROUP_SIZE)
    return {moment: codes, f"{moment}_scales": scales}


def _quantize(values: torch.Tensor, moment: str) -> Probe:
    """Without memory the moments are the gradient and its square."""
    made = values if moment == "momentum" else values * values
    return Probe(
        _zeros(values, torch.float32, "momentum", "variance"),
        values,
        Hyperparameters(Optimizer.ADAMW, beta1=0.0, beta2=0.0),
        lambda calls: _quantized(calls, moment, made),
    )


def _dequantize(values: torch.Tensor, moment: str) -> Probe:
    """A momentum that neither fades nor grows moves a weight from 0 by itself. A variance is not
    shown alone: it is quantized again."""
    if moment == "variance":
        before = _zeros(values, torch.float32, "momentum")
        before |= states.stored_moment(moment, values * values, "quantized", torch.float32)

        def again(calls: SubjectCalls) -> State:
            given = before[moment], before[f"{moment}_scales"]
            dequantized, _ = calls.dequantize(*given, _spec(moment), GROUP_SIZE)
            return _quantized(calls, moment, dequantized)

        # 1 - beta^t is 0, and the weights, which are divided by it, are not looked at.
        hyper = Hyperparameters(Optimizer.ADAMW, lr=0.0, beta2=1.0)
        return Probe(before, torch.zeros_like(values), hyper, again)
    before = {"param": torch.zeros_like(values)}
    before |= states.stored_moment(moment, values, "quantized", torch.float32)

    def moved(calls: SubjectCalls) -> State:
        given = before[moment], before[f"{moment}_scales"]
        dequantized, _ = calls.dequantize(*given, _spec(moment), GROUP_SIZE)
        return {"param": 0.0 - dequantized}

    hyper = Hyperparameters(Optimizer.SGD, lr=1.0, momentum=1.0)
    return Probe(before, torch.zeros_like(values), hyper, moved)


def _compute_ecc(values: torch.Tensor, pair: str) -> Probe:
    """From 0 a weight moves to the gradient times a learning rate that is no power of two."""
    dtype, lr = states.dtype_of(pair), 0.37
    before = _zeros(values, dtype, "momentum")
    before["ecc"] = torch.zeros(values.numel(), dtype=torch_dtype(ECC_FORMATS[pair.split("+")[1]]))
    grad = values.to(dtype)

    def split(calls: SubjectCalls) -> State:
        theta = 0.0 - grad.float() * torch.tensor(lr)
        narrow = theta.to(dtype)
        outputs, _ = calls.split_and_back(
            calls.to_device(theta), calls.to_device(narrow), before["ecc"].dtype
        )
        return {"param": narrow, "ecc": outputs.rho}

    return Probe(before, grad, Hyperparameters(Optimizer.SGD, lr=lr), split)


def _reconstruct(values: torch.Tensor, pair: str) -> Probe:
    """Coupled decay of 1 adds the weight to a gradient of 0, and the momentum stores it."""
    before = states.stored_param(values, pair)
    dtype = before["param"].dtype
    before |= states.stored_moment("momentum", torch.zeros_like(values), "quantized", dtype)

    def rebuilt(calls: SubjectCalls) -> State:
        weights, _ = calls.reconstruct(before["param"], before["ecc"])
        return _quantized(calls, "momentum", weights)

    hyper = Hyperparameters(Optimizer.SGD, lr=0.0, weight_decay=1.0)
    return Probe(before, torch.zeros(values.numel(), dtype=dtype), hyper, rebuilt)


_PROBES: dict[str, Callable[[torch.Tensor, str], Probe]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "compute_ecc": _compute_ecc,
    "reconstruct": _reconstruct,
}
