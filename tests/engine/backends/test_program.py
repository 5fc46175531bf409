"""Steps of few rows, as one call, come to what their operators come to one by one: to the last bit."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
import window_tables
from tiny_families import FAMILIES
from tiny_models import PROCESSORS, RandomCheckpoint, llama, on

from legato_engine.backends.cpu.experts import CpuExperts
from legato_engine.backends.cpu.program import Program
from legato_engine.kernels.cpu import program as kernels
from legato_engine.kernels.paths import INT8_AVX2
from legato_engine.layers.low_rank import Pair
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Row
from legato_engine.weights.expected import projections

FORM = pytest.mark.parametrize("form", [on("int8-avx2")])
LLAMA = llama(layers=3)
MODELS = {
    "llama": LLAMA,
    "mistral": replace(LLAMA, architecture="MistralForCausalLM", sliding_window=48),
    "qwen 2": replace(LLAMA, architecture="Qwen2ForCausalLM", sliding_window=48, full_attention=(0,)),
    "qwen 3": replace(LLAMA, architecture="Qwen3ForCausalLM", head_dim=64),
    "biases": replace(LLAMA, attention_bias=True, mlp_bias=True),
    "wide": replace(LLAMA, hidden_size=512, intermediate_size=768, heads=16, kv_heads=4),
    **{name: FAMILIES[name] for name in ("phi 4 mini", "gemma 3", "granite", "olmo 2", "smollm 3", "qwen 3 moe")},
}
FORM_OF = {"v_proj": "Q8_0", "down_proj": "Q6_K", "up_proj": None}
KINDS = {
    "4 bits": lambda name: "Q4_1",
    "8 bits": lambda name: "Q8_0",
    "K-quants": lambda name: "Q4_K",
    "a form for each projection": lambda name: FORM_OF.get(name.rsplit(".", 2)[-2], "Q4_1"),
    "no codes": lambda name: None,
}


def load(config, form, kinds="4 bits", threads=2):
    checkpoint, instructions = RandomCheckpoint(config, kinds=KINDS[kinds]), PROCESSORS[form]
    given = {"block_size": 16, "kv_cache_bytes": 16 << 20, "dtype": "auto", "max_length": 1024}
    return Runner.load(checkpoint, RunnerOptions(threads=threads, instructions=instructions, **given))


def rows(runner, draw, *shapes, adapters=(None,)):
    """Each of some tokens from a position on; of its own blocks, with adapters in turn."""
    found, block = [], 1
    for number, (tokens, start) in enumerate(shapes):
        blocks = -(-(start + tokens) // 16)
        given = [(11 * number + 7 * i) % 300 for i in range(tokens)]
        table = list(range(block, block + blocks))
        windows, adapter = window_tables.of_row(runner, table), adapters[number % len(adapters)]
        found.append(Row(given, start, table, (draw,), adapter=adapter, windows=windows))
        block += blocks
    return tuple(found)


STEPS = (
    [(1, 0)], [(1, 100)], [(1, 400)], [(2, 30)], [(1, i * 20) for i in range(8)], [(1, 7), (5, 40), (3, 0)],
    [(1, i) for i in range(9)], [(20, 0)], [(1, 300), (23, 200)],
)  # fmt: skip


def mixtures(runner):
    return [block._mlp for block in runner._model._blocks if isinstance(block._mlp, CpuExperts)]


def by_operator(runner):
    """Computes with the same runner, without a program, and with tokens grouped by expert."""
    for experts in mixtures(runner):
        object.__setattr__(experts, "by_row", None)
    path = runner._backend._numerics.path
    runner._backend._numerics.path = replace(path, linear=path.linear[1:])
    return runner


def computed(runner, steps, draw):
    """Logits of steps one after the other, in blocks that all of them write and read."""
    with torch.inference_mode():
        return [runner.logits(rows(runner, draw, *shapes)) for shapes in ([(512, 0)], *steps)]


@pytest.mark.parametrize(
    ("form", "model", "kinds"),
    [
        *(on("int8", model, "4 bits") for model in MODELS),
        *(on("int8", "wide", kinds) for kinds in ("8 bits", "K-quants", "a form for each projection")),
        on("int8", "biases", "no codes"),
        on("int8-avx2", "mistral", "4 bits"),  # differs in how codes are multiplied
        on("int8-avx2", "wide", "a form for each projection"),
    ],
)
def test_logits_are_those_of_the_operators_one_by_one(form, model, kinds, greedy_draw):
    runner, plain = load(MODELS[model], form, kinds), by_operator(load(MODELS[model], form, kinds))

    found, expected = computed(runner, STEPS, greedy_draw), computed(plain, STEPS, greedy_draw)

    assert all(map(torch.equal, found, expected))
    assert found[0].isfinite().all()
    assert torch.equal(runner.arena._memory, plain.arena._memory)
    assert runner._backend._programs
    assert all(experts.by_row for experts in mixtures(runner))
    assert not plain._backend._programs


@FORM
def test_adapters_in_a_program(form, greedy_draw):
    config, found = MODELS["wide"], []
    for runner in (load(config, form), by_operator(load(config, form))):
        made = [made_adapter(config, rank) for rank in (1, 17, 4)]
        adapters = [None, *map(runner.adapter, made)]
        with torch.inference_mode():
            steps = [rows(runner, greedy_draw, *shapes, adapters=adapters) for shapes in STEPS]
            found.append([runner.logits(each) for each in steps])

    assert all(map(torch.equal, *found))


def made_adapter(config, rank):
    torch.manual_seed(rank)
    sizes = projections(config).items()
    return {name: Pair(torch.randn(rank, inputs), torch.randn(outputs, rank)) for name, (outputs, inputs) in sizes}


@FORM
def test_threads_make_no_difference(form, greedy_draw):
    one, two = (computed(load(MODELS["wide"], form, threads=threads), STEPS, greedy_draw) for threads in (1, 2))

    assert all(map(torch.equal, one, two))


@FORM
def test_larger_steps_in_between_make_no_difference(form, greedy_draw):
    """The buffers of layers grow, and what was recorded still computes in its own memory."""
    runner, plain = load(LLAMA, form), by_operator(load(LLAMA, form))
    steps = [(1, 9)], [(200, 0)], [(1, 9)], [(kernels.MOST, 0)], [(kernels.MOST + 1, 0)], [(400, 100)], [(3, 100)]

    for found, expected in zip(computed(runner, steps, greedy_draw), computed(plain, steps, greedy_draw), strict=True):
        assert torch.equal(found, expected)


@FORM
def test_warm_up_computes_with_a_program_and_without(form, monkeypatch):
    """Else a kernel would be compiled while requests wait."""
    runner, counts = load(LLAMA, form), []
    logits = runner.logits

    def counted(given, *before):
        counts.append(sum(len(row.tokens) for row in given))
        return logits(given, *before)

    monkeypatch.setattr(runner, "logits", counted)

    runner.warm_up()

    assert counts[0] == 1
    assert 1 < counts[1] <= kernels.MOST < counts[2]


def test_memory_lives_as_long_as_the_program_that_has_its_address():
    program, array = Program(INT8_AVX2), np.zeros(8, np.float32)
    program.add(kernels.ADD, out=array[4:], bias=np.ones(4, np.float32), width=4)
    held = weakref.ref(array)
    del array
    gc.collect()
    assert held() is not None

    del program
    gc.collect()
    assert held() is None
