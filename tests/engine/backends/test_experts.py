"""Mixtures of experts of each backend compute what the reference computes."""

from dataclasses import replace
from types import SimpleNamespace

import interpreted_models  # noqa: F401  # finds modules of tests/gpu
import numpy as np
import pytest
import torch
from made_model import Row, step_inputs
from tiny_families import FAMILIES
from tiny_models import RandomCheckpoint
from triton.runtime.interpreter import ReduceOps

from legato_engine.backends import projections
from legato_engine.backends.cpu import numerics
from legato_engine.backends.cpu.layers import CpuBackend
from legato_engine.backends.cpu.workspace import room
from legato_engine.backends.cuda.backend import CudaBackend
from legato_engine.backends.cuda.device import Interpreted
from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.torch.layers import TorchBackend
from legato_engine.kernels import paths
from legato_engine.kernels.reference import experts as reference
from legato_engine.kernels.reference.experts import Expert
from legato_engine.kernels.routing import ExpertRouting, Gating, Scoring
from legato_engine.layers.experts import ExpertNames, ExpertsShape, SharedExpert

HIDDEN, INNER = 64, 32
NAMES = ExpertNames("router", "experts.{}.gate", "experts.{}.up", "experts.{}.down")
PLAIN = ExpertsShape(HIDDEN, INNER, ExpertRouting(8, 3), NAMES)
SHARED = SharedExpert("shared.gate", "shared.up", "shared.down", 96, "shared_gate")
SHAPES = {
    "softmax": PLAIN,
    "one": replace(PLAIN, routing=ExpertRouting(8, 1, normalize=False)),
    "scaled": replace(PLAIN, routing=ExpertRouting(8, 2, normalize=False, scale=2.5)),
    "sigmoid": replace(
        PLAIN,
        routing=ExpertRouting(12, 3, Scoring.SIGMOID, groups=4, active_groups=2),
        names=replace(NAMES, correction="correction"),
    ),
    "gpt-oss": replace(PLAIN, gating=Gating.CLAMPED, router_bias=True, biases=True),
    "shared": replace(PLAIN, shared=SHARED),
    "shared, without a weight": replace(PLAIN, shared=replace(SHARED, weight=None)),
}


def made(shape):
    draw = torch.Generator().manual_seed(3)
    tensors = {}

    def linear(name, outputs, inputs, bias):
        tensors[f"{name}.weight"] = torch.randn(outputs, inputs, generator=draw)
        if bias:
            tensors[f"{name}.bias"] = torch.randn(outputs, generator=draw)

    linear("router", shape.routing.count, HIDDEN, shape.router_bias)
    tensors["correction"] = torch.randn(shape.routing.count, generator=draw)
    parts = [(*shape.gate_up(i), shape.down(i), INNER, shape.biases) for i in range(shape.routing.count)]
    if shape.shared is not None:
        linear("shared_gate", 1, HIDDEN, bias=False)
        parts.append((SHARED.gate, SHARED.up, SHARED.down, SHARED.inner, False))
    for gate, up, down, inner, bias in parts:
        linear(gate, inner, HIDDEN, bias)
        linear(up, inner, HIDDEN, bias)
        linear(down, HIDDEN, inner, bias)
    return tensors


def layer(backend, shape, tensors):
    """The layer as a function of x, float32 [tokens, hidden]."""
    checkpoint = RandomCheckpoint(FAMILIES["qwen 3 moe"], change=lambda given: given.update(tensors))
    if backend == "torch":
        given = torch.float32, torch.device("cpu"), 64, lambda share: None
        experts = TorchBackend(checkpoint, *given).experts(shape)
        return lambda x: experts(None, x)
    if backend == "cuda":
        return layer_on_gpu(checkpoint, shape)
    experts = CpuBackend(checkpoint, numerics.make(paths.FLOAT32), 64, lambda share: None).experts(shape)

    def compute(x):
        step = SimpleNamespace(rows=len(x), call=lambda work: work(step))
        roomy = torch.full((room(len(x)), HIDDEN), torch.nan)
        roomy[: len(x)] = x
        return torch.from_numpy(experts(step, roomy.numpy())[: len(x)].copy())

    return compute


def layer_on_gpu(checkpoint, shape, add=lambda choices: None):
    """The same by Triton. The step is padded, with rows that are not numbers. `add` gets the chosen experts."""
    backend = CudaBackend(checkpoint, torch.float32, Interpreted(2), Room(64, 8, 4, 16), lambda share: None)
    experts = backend.experts(shape)

    def compute(x):
        step = backend.begin(step_inputs([Row([0] * len(x), 0, range(4))], 16), torch.zeros(1))
        padded = torch.full((len(step.tokens), HIDDEN), torch.nan)
        padded[: len(x)] = x
        found = experts(step, padded)[: len(x)].clone()
        add(experts.memory.choice(len(padded)).numbers[: len(x)].tolist())
        return found

    return compute


def expected(shape, tensors, x):
    def bias(*names):
        return torch.cat([tensors[f"{name}.bias"] for name in names]) if f"{names[0]}.bias" in tensors else None

    def expert(gate_up, down):
        weight = torch.cat([tensors[f"{name}.weight"] for name in gate_up])
        return Expert(weight, tensors[f"{down}.weight"], bias(*gate_up), bias(down))

    routing = shape.routing
    logits = torch.nn.functional.linear(x, tensors["router.weight"], bias("router"))
    chosen = reference.route(logits, tensors["correction"] if shape.names.correction else None, routing)
    weights = [expert(shape.gate_up(i), shape.down(i)) for i in range(routing.count)]
    sums = reference.experts(x, chosen, weights, shape.gating)
    if shape.shared is not None:
        share = (x @ tensors["shared_gate.weight"].T).sigmoid() if shape.shared.weight else torch.ones(len(x), 1)
        one = expert((SHARED.gate, SHARED.up), SHARED.down)
        sums += share * reference.experts(x, [[(0, 1.0)]] * len(x), [one], shape.gating)
    return sums.float()


def inputs(rows):
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(rows))


class Halves:
    """Stands for AMX: inputs of linear layers are bfloat16."""

    inputs, path = np.uint16, paths.TILES

    def linear(self, checkpoint, names, bias):
        weight = projections.weights(checkpoint, names, torch.float32)
        biases = projections.biases(checkpoint, names) if bias else None

        def multiply(x, rows, out):
            given = torch.from_numpy(x[:rows].view(np.int16)).view(torch.bfloat16).float()
            out[:rows] = torch.nn.functional.linear(given, weight, biases).numpy()

        multiply.nbytes = weight.nbytes
        return multiply


@pytest.mark.parametrize("name", ["softmax", "gpt-oss", "shared"])
def test_inputs_of_experts_may_be_bfloat16(name):
    shape, tensors, x = SHAPES[name], made(SHAPES[name]), inputs(9).bfloat16()
    checkpoint = RandomCheckpoint(FAMILIES["qwen 3 moe"], change=lambda given: given.update(tensors))
    experts = CpuBackend(checkpoint, Halves(), 64, lambda share: None).experts(shape)
    roomy = torch.zeros(room(9), HIDDEN, dtype=torch.bfloat16)
    roomy[:9] = x
    step = SimpleNamespace(rows=9, call=lambda work: work(step))

    found = torch.from_numpy(experts(step, roomy.view(torch.int16).numpy().view(np.uint16))[:9])

    exact = expected(shape, tensors, x.float())
    assert (found - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("backend", ["torch", "cpu", "cuda"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_layer_computes_what_the_reference_computes(name, backend):
    shape, tensors = SHAPES[name], made(SHAPES[name])
    compute = layer(backend, shape, tensors)
    for rows in (1, 2, 33, 7):
        x = inputs(rows)
        torch.testing.assert_close(compute(x), expected(shape, tensors, x), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("backend", ["torch", "cpu", "cuda"])
@pytest.mark.parametrize("name", ["softmax", "sigmoid", "gpt-oss"])
def test_logits_that_are_not_numbers_end_in_their_own_token(name, backend):
    shape, x = SHAPES[name], inputs(5)
    compute = layer(backend, shape, made(shape))
    exact = compute(x)
    x[2, 7] = torch.nan

    found = compute(x)

    assert found[2].isnan().all()
    torch.testing.assert_close(found[[0, 1, 3, 4]], exact[[0, 1, 3, 4]], atol=1e-3, rtol=1e-4)


@pytest.fixture
def argmax_of_gpus(monkeypatch):
    """In Triton's interpreter: numpy's argmax finds NaN, but on a GPU no comparison with NaN holds."""

    def never_nan(values, **given):
        return np.argmax(np.where(np.isnan(values), -np.inf, np.maximum(values, -3e38)), **given)

    def min_max(self, input, val_reduce_op, idx_reduce_op=None):
        return plain(self, input, val_reduce_op, never_nan if idx_reduce_op is np.argmax else idx_reduce_op)

    plain = ReduceOps.min_max
    monkeypatch.setattr(ReduceOps, "min_max", min_max)


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_a_gpu_chooses_different_experts_where_logits_are_not_numbers(name, argmax_of_gpus):
    """And such that exist: their weights are read."""
    x, choices = inputs(5), []
    x[2, 7] = torch.nan
    checkpoint = RandomCheckpoint(FAMILIES["qwen 3 moe"], change=lambda given: given.update(made(SHAPES[name])))
    layer_on_gpu(checkpoint, SHAPES[name], choices.extend)(x)
    assert choices[2] == [0, 1, 2]


@pytest.mark.parametrize("backend", ["torch", "cpu", "cuda"])
def test_experts_that_no_token_chose_are_not_computed(backend):
    tensors, x = made(PLAIN), inputs(1)
    (pairs,) = reference.route(x @ tensors["router.weight"].T, None, PLAIN.routing)
    chosen = [number for number, _ in pairs]
    others = {name for name in tensors if name.startswith("experts.") and int(name.split(".")[1]) not in chosen}
    broken = {name: torch.full_like(each, torch.nan) if name in others else each for name, each in tensors.items()}
    assert torch.equal(layer(backend, PLAIN, broken)(x), layer(backend, PLAIN, tensors)(x))
