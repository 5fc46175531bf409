"""Measures attention on a GPU against the GPU's limits: decoding rows against its copy bandwidth, a prompt
against torch's attention by FlashAttention and by cuDNN, with KV in blocks of 16, 32 and 64 tokens, in four layouts.

`scripts/gpu` runs it. Weights and KV are made up; torch, triton and numpy are all it needs.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel

from legato_engine.kernels.gpu.attention.made_step import HEAD_MAJOR, MadeStep, Shape
from legato_engine.kernels.gpu.chips import has_float8
from legato_engine.kernels.gpu.configurations import choose

DIM = 128
LAYOUTS = {  # where the axes of blocks, layers, keys or values, KV heads, and places lie in memory
    "head-major": HEAD_MAJOR,
    "layers first": (0, 1, 2, 3, 4),
    "heads outermost": (3, 0, 1, 2, 4),
    "layer-major": (1, 0, 2, 3, 4),
}
PEERS = {"FlashAttention by torch": SDPBackend.FLASH_ATTENTION, "cuDNN by torch": SDPBackend.CUDNN_ATTENTION}
Result = dict[str, Any]
Timer = Callable[[Callable[[], Any]], float]


@dataclass(frozen=True)
class AttentionSizes:
    """Rows that decode, tokens of their contexts, tokens of a prompt, KV heads, and bytes to copy."""

    rows: tuple[int, ...] = (32, 64)
    context: int = 4096
    prompt: int = 8192
    kv_heads: int = 8
    copied: int = 2 << 30
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class AttentionBench:
    """`seconds` of a function that starts work on the device."""

    device: torch.device
    chip: str
    processors: int
    seconds: Timer
    sizes: AttentionSizes

    def measure(self) -> list[Result]:
        return list(self.figures())

    def figures(self) -> Iterator[Result]:
        """One after the other, as they are measured."""
        bandwidth = self.bandwidth()
        yield {"what": "copy", "rate": bandwidth / 1e9, "unit": "GB/s"}
        for group in (4, 8):
            yield from self.decoding(group, bandwidth)
        if has_float8(self.chip):
            yield from self.decoding(8, bandwidth, e4m3=True)
        for group in (4, 8):
            yield from self.prompts(group)

    def bandwidth(self) -> float:
        """Bytes read and written a second."""
        source = torch.zeros(self.sizes.copied, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.seconds(lambda: target.copy_(source))

    def decoding(self, group: int, limit: float, e4m3: bool = False) -> Iterator[Result]:
        for rows in self.sizes.rows:
            for layout in LAYOUTS:
                for block in (16, 32, 64):
                    step = _step(self, [(self.sizes.context - 1, 1)] * rows, group, block, layout, e4m3)
                    kv = rows * self.sizes.context * self.sizes.kv_heads * DIM * 2 * step.layer.dtype.itemsize
                    rate = kv / self.seconds(step.attend)
                    what = f"decode, {rows} rows at {self.sizes.context}, group {group}, {layout}, blocks of {block}"
                    what += ", KV in e4m3" * e4m3
                    yield {"what": what, "rate": rate / 1e9, "unit": "GB/s", "share": rate / limit, "of": "copy"}

    def prompts(self, group: int) -> Iterator[Result]:
        heads, tokens = group * self.sizes.kv_heads, self.sizes.prompt
        amount = 4 * heads * DIM * tokens * (tokens + 1) / 2
        peers = {}
        for name, backend in PEERS.items():
            with contextlib.suppress(RuntimeError):  # torch has none such here
                peers[name] = amount / self.seconds(self._peer(group, backend))
                what = f"prompt of {tokens}, group {group}, {name}"
                yield {"what": what, "rate": peers[name] / 1e12, "unit": "TFLOP/s"}
        for layout in LAYOUTS:
            for block in (16, 32, 64):
                step = _step(self, [(0, tokens)], group, block, layout)
                rate = amount / self.seconds(step.attend)
                what = f"prompt of {tokens}, group {group}, {layout}, blocks of {block}"
                shares = {f"of {name}": rate / peer for name, peer in peers.items()}
                yield {"what": what, "rate": rate / 1e12, "unit": "TFLOP/s", **shares}

    def _peer(self, group: int, backend: SDPBackend) -> Callable[[], torch.Tensor]:
        heads = self.sizes.kv_heads
        q, k, v = (self.random(1, count, self.sizes.prompt, DIM) for count in (group * heads, heads, heads))

        def attend() -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return attend

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=self.sizes.dtype, device=self.device)


def _step(
    bench: AttentionBench, rows: list[tuple[int, int]], group: int, block: int, layout: str, e4m3: bool = False
) -> MadeStep:
    shape = Shape(DIM, group, bench.sizes.kv_heads, block, bench.sizes.dtype, bench.device, bench.processors, e4m3)
    decode, prefill = (choose(f"{name}_attention", shape.named, bench.chip) for name in ("decode", "prefill"))
    return MadeStep(shape, rows, decode, prefill, LAYOUTS[layout])


def on_gpu() -> AttentionBench:
    """All in full size."""
    properties = torch.cuda.get_device_properties(0)

    def seconds(work: Callable[[], Any]) -> float:
        work()
        return float(triton.testing.do_bench_cudagraph(work, rep=100, return_mode="median")) / 1e3

    chip = f"sm_{properties.major}{properties.minor}"
    return AttentionBench(torch.device("cuda", 0), chip, properties.multi_processor_count, seconds, AttentionSizes())


def table(machine: dict[str, Any], properties: list[Result]) -> str:
    """For a person, and for the docs."""
    lines = [", ".join(f"{name} {value}" for name, value in machine.items()), ""]
    lines += ["| what | rate | shares |", "| --- | ---: | --- |"]
    for each in properties:
        shares = [f"{value:.0%} {name}" for name, value in each.items() if name.startswith("of ")]
        shares += [f"{each['share']:.0%} of {each['of']}"] if "share" in each else []
        lines.append(f"| {each['what']} | {each['rate']:,.1f} {each['unit']} | {', '.join(shares)} |")
    return "\n".join(lines)
