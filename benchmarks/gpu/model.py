"""Measures a whole model on a GPU against the GPU's limits: shapes of Llama-3-8B or Qwen3-30B-A3B, with weights made on
the device.

- Decoding against the bandwidth floor: the time in which a step's weights and KV would be read at the bandwidth of a
  copy; of experts, as many as tokens choose on average. Steps follow one another as in a worker, with greedy sampling,
  see `decoding`.
- The time that the GPU is idle between such steps: the time of a step less the time of a step whose
  kernels are all queued before the GPU begins, measured by CUDA events.
- A prompt against a large product of matrices: operations of its linear layers and of causal attention a second.
- Decoding and a chunk of a prompt in one step, against the sum of the floors of both.
- Steps replayed from a CUDA graph against the same steps launched kernel by kernel, bit for bit.
- Decoding rows with adapters against the same rows without, in turn.
- The seconds and the memory that it takes to capture the graphs of the start.
- The same with quantized linear layers, against the bandwidth floor of their codes and the times of 16 bits.

Limits are measured in the same process. `scripts/gpu` runs this; torch, triton and numpy are all it needs.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch
from clock import CudaClock, DeviceClock, HostClock
from decoding import Decoding
from made_model import LLAMA_3_8B, QWEN3_30B_A3B, MadeCodes, MadeModel, MadeWeights, Row

from legato_engine.backends.cuda.device import Cuda, Device, Interpreted
from legato_engine.backends.cuda.workspace import Room
from legato_engine.kernels.routing import ExpertRouting
from legato_engine.models.config import ModelConfig
from legato_engine.models.hyperparameters.experts import ExpertsConfig
from legato_engine.weights.expected import projections

Result = dict[str, Any]
IDLE_SHARE = 0.05  # an aim: at most
MIXED_SHARE = 1 / 1.15  # an aim: at least
ADAPTERS, RANK, ROUNDS = 8, 16, 5
ADAPTED = 1.15  # an aim: at most, of the time without adapters
# Aims of quantized weights: times as fast as 16 bits, by form and figure.
FORMS = {
    "llama-3-8b": ("FP8, channel", "FP8, blocks", "W4A16"), "qwen3-30b-a3b": ("FP8, blocks", "MXFP4"), "tiny": (),
    "tiny-experts": (),
}  # fmt: skip
FASTER = {
    ("FP8, channel", "1 row"): 1.55, ("FP8, channel", "64 rows"): 1.3, ("FP8, channel", "prompt"): 1.4,
    ("FP8, blocks", "1 row"): 1.55, ("W4A16", "1 row"): 2.2,
}  # fmt: skip
OTHER_MEMORY = 4 << 30  # what steps and sampling compute into, graphs, and torch's and the driver's own


@dataclass(frozen=True)
class Sizes:
    """Rows that decode, ascending, tokens of their contexts, tokens of a prompt and of a chunk of it, sides of matrices
    to multiply, bytes to copy, and steps in a row.
    """

    config: ModelConfig
    rows: tuple[int, ...]
    context: int
    prompt: int
    chunk: int
    product: int
    copied: int
    steps: int
    block: int = 64
    mixed: int = 32  # rows that decode in the same step as a chunk
    decode_share: float = 0.70  # aims: at least
    prefill_share: float = 0.50

    @property
    def blocks(self) -> int:
        return max(self.rows[-1] * self.blocks_of(self.context), self.blocks_of(self.prompt))

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def token_bytes(self, dtype: torch.dtype) -> int:
        """KV of one token."""
        return self.config.layers * 2 * self.config.kv_heads * self.config.head_dim * dtype.itemsize

    def memory(self, dtype: torch.dtype) -> int:
        weights = MadeWeights(self.config, dtype, torch.device("cpu")).nbytes
        return weights + self.blocks * self.block * self.token_bytes(dtype) + 2 * self.copied + OTHER_MEMORY


SHAPES = {
    "llama-3-8b": Sizes(LLAMA_3_8B, (1, 32, 64, 128, 256), 1024, 8192, 512, 8192, 2 << 30, 50),
    "qwen3-30b-a3b": Sizes(
        QWEN3_30B_A3B, (1, 32, 64), 1024, 8192, 512, 8192, 2 << 30, 50, decode_share=0.6, prefill_share=0.4
    ),
    "tiny": Sizes(
        replace(
            LLAMA_3_8B, layers=1, hidden_size=64, heads=4, kv_heads=2, head_dim=32, intermediate_size=96, vocab_size=320
        ),
        (1, 3), 20, 24, 16, 64, 1 << 16, 3, block=16, mixed=1,
    ),
    "tiny-experts": Sizes(
        replace(
            QWEN3_30B_A3B, layers=1, hidden_size=64, heads=4, kv_heads=2, head_dim=32, vocab_size=320,
            experts=ExpertsConfig(ExpertRouting(6, 2), 32),
        ),
        (1, 3), 20, 24, 16, 64, 1 << 16, 3, block=16, mixed=1,
    ),
}  # fmt: skip


class ModelBench:
    """A model of these sizes on a device, whose KV is random numbers."""

    def __init__(
        self, sizes: Sizes, device: Device, dtype: torch.dtype, clock: DeviceClock, forms: tuple[str, ...] = ()
    ) -> None:
        """`forms` of quantized weights are measured after 16 bits."""
        self.sizes, self.device, self.dtype, self.clock, self.forms = sizes, device, dtype, clock, forms
        self._seconds: dict[tuple[str, str], float] = {}  # by form and figure; a form of "" is 16 bits
        self._make("")

    def _make(self, form: str) -> None:
        """Replaces the model: the device may have no room for two."""
        sizes, dtype, device = self.sizes, self.dtype, self.device
        self._form = form
        self.__dict__.pop("_model", None)
        gc.collect()
        if device.place.type == "cuda":
            torch.cuda.empty_cache()
        made = MadeCodes(sizes.config, dtype, device.place, form) if form else None
        self._weights = made or MadeWeights(sizes.config, dtype, device.place)
        longest = sizes.blocks_of(max(sizes.context, sizes.prompt))
        room = Room(max(sizes.prompt, sizes.rows[-1]), sizes.rows[-1], longest, sizes.block)
        self._model = MadeModel(self._weights, dtype, device, room, sizes.blocks)
        began, free = perf_counter(), self._free()
        self._model.capture()
        self.clock.wait()
        self._captures = perf_counter() - began, free - self._free()
        with torch.inference_mode():
            self._model.arena.normal_()

    def _free(self) -> int:
        """Bytes of the device."""
        return torch.cuda.mem_get_info(self.device.place)[0] if self.device.place.type == "cuda" else 0

    def figures(self) -> Iterator[Result]:
        """One after the other, as they are measured."""
        yield {"what": "clock", "value": self.clock.name}
        bandwidth, rate = self._bandwidth(), self._product_rate()
        yield {"what": "copy", "value": bandwidth / 1e9, "unit": "GB/s"}
        yield {"what": f"product of matrices of {self.sizes.product}", "value": rate / 1e12, "unit": "TFLOP/s"}
        seconds, nbytes = self._captures
        yield {"what": "warm-up of kernels, and graphs of the start", "value": seconds, "unit": "s"}
        yield {"what": "memory of the same", "value": nbytes / 2**20, "unit": "MiB"}
        for rows in self.sizes.rows:
            yield self._replayed(self._rows(rows), self._decoding_rows(rows))
            yield from self._decoding(rows, bandwidth)
        yield from self._mixed(bandwidth, rate)
        yield from self._adapted(self.sizes.rows[1])
        for chunk in dict.fromkeys((self.sizes.prompt, self.sizes.chunk)):
            yield self._prefill(chunk, rate)
        for form in self.forms:
            self._make(form)
            for rows in self.sizes.rows:
                yield self._replayed(self._rows(rows), self._decoding_rows(rows))
                yield from self._decoding(rows, bandwidth)
                yield self._faster("1 row" if rows == 1 else f"{rows} rows")
            yield self._prefill(self.sizes.prompt, rate)
            yield self._faster("prompt")

    def _faster(self, figure: str) -> Result:
        times = self._seconds["", figure] / self._seconds[self._form, figure]
        result: Result = {"what": f"{self._form}: {figure} against 16 bits", "value": times, "unit": "×"}
        least = FASTER.get((self._form, figure))
        return result | ({} if least is None else {"aim": f"at least {least}", "met": times >= least})

    def _bandwidth(self) -> float:
        """Bytes read and written a second."""
        source = torch.randint(0, 256, (self.sizes.copied,), dtype=torch.uint8, device=self.device.place)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.clock.seconds(lambda: target.copy_(source), 20)

    def _product_rate(self) -> float:
        """Operations a second."""
        side = self.sizes.product
        first, second = (torch.randn(side, side, dtype=self.dtype, device=self.device.place) for _ in range(2))
        out = torch.empty_like(first)
        return 2 * side**3 / self.clock.seconds(lambda: torch.mm(first, second, out=out), 20)

    def _adapted(self, count: int) -> Iterator[Result]:
        """Rows that use adapters in turn, and the same rows without."""
        adapters = [self._model.adapter(RANK) for _ in range(min(ADAPTERS, count))]
        what = f"{self._rows(count)}, {len(adapters)} adapters of rank {RANK}"
        rows = self._decoding_rows(count)
        yield self._replayed(what, [row._replace(adapter=adapters[i % len(adapters)]) for i, row in enumerate(rows)])
        base, adapted = (Decoding(self._model, self.device, count, self.sizes.context) for _ in range(2))
        adapted.adapters = adapters
        seconds = self.clock.seconds
        times = median(
            [1 / seconds(base.step, self.sizes.steps) * seconds(adapted.step, self.sizes.steps) for _ in range(ROUNDS)]
        )
        result: Result = {"what": f"decode, {what}, against none", "value": times, "unit": "×"}
        yield result | {"aim": f"at most {ADAPTED}", "met": times <= ADAPTED}

    def _decoding_rows(self, count: int) -> list[Row]:
        held = self.sizes.blocks_of(self.sizes.context)
        tables = (range(row * held, (row + 1) * held) for row in range(count))
        return [Row([row], self.sizes.context - 1, table) for row, table in enumerate(tables)]

    def _replayed(self, what: str, rows: list[Row]) -> Result:
        with torch.inference_mode():
            self._model.step(rows)
            self._model.capture_missing()
            eager = self._model.eager(rows)
            count = sum(row.samples for row in rows)
            expected = eager[:count].clone()
            eager.fill_(torch.nan)  # otherwise a step that computed nothing would leave the right values there
            equal = torch.equal(self._model.step(rows), expected)
        return {"what": self._named(f"replay equals eager, {what}"), "equal": equal}

    def _mixed(self, bandwidth: float, rate: float) -> Iterator[Result]:
        """Rows that decode, and in the same step a chunk of a prompt, in blocks after theirs."""
        sizes = self.sizes
        count, chunk, vocab = sizes.mixed, sizes.chunk, sizes.config.vocab_size
        first = count * sizes.blocks_of(sizes.context)
        blocks = range(first, first + sizes.blocks_of(chunk))
        prompt = Row([index % vocab for index in range(chunk)], 0, blocks, samples=0)
        what = f"{self._rows(count)} and a chunk of {chunk}"
        yield self._replayed(what, [*self._decoding_rows(count), prompt])
        floor = self._decoded_bytes(count) / bandwidth + self._operations(chunk, head=False) / rate
        took = self.clock.seconds(
            Decoding(self._model, self.device, count, sizes.context, prompt=prompt).step, sizes.steps
        )
        result = {
            "what": what,
            "value": took * 1e3,
            "unit": "ms",
            "share": floor / took,
            "of": "the sum of both floors",
        }
        yield result | _aim(floor / took, MIXED_SHARE, True)

    def _decoding(self, count: int, bandwidth: float) -> Iterator[Result]:
        read = self._decoded_bytes(count)
        for eager in (False,) if self._form else (True, False):
            decoding = Decoding(self._model, self.device, count, self.sizes.context, eager)
            took = self.clock.seconds(decoding.step, self.sizes.steps)
            what = self._named(f"decode, {self._rows(count)}, {'eager' if eager else 'by graph'}")
            share = read / bandwidth / took
            result = {"what": what, "value": took * 1e3, "unit": "ms", "share": share, "of": "the bandwidth floor"}
            yield result | _aim(share, self.sizes.decode_share, not eager and count == 1)
            if not eager:
                self._seconds[self._form, "1 row" if count == 1 else f"{count} rows"] = took
            if not eager and not self._form:
                yield self._idle(count, took, self.clock.queued(decoding.launch))

    def _idle(self, count: int, took: float, busy: float) -> Result:
        what, share = f"idle between steps, {self._rows(count)}", 1 - busy / took
        result: Result = {"what": what, "value": (took - busy) * 1e3, "unit": "ms", "share": share, "of": "a step"}
        if count == self.sizes.rows[-1]:
            result |= {"aim": f"at most {IDLE_SHARE:.0%}", "met": share <= IDLE_SHARE}
        return result

    def _operations(self, tokens: int, head: bool) -> int:
        """Operations of a prompt of this length: linear layers, causal attention, and the head for one token."""
        config = self.sizes.config
        linear = sum(outputs * inputs for outputs, inputs in projections(config).values())
        if config.experts is not None:
            expert = 3 * config.hidden_size * config.experts.inner
            linear += (config.layers - len(config.experts.dense_layers)) * config.experts.routing.active * expert
        attention = 2 * config.layers * config.heads * config.head_dim * tokens * (tokens + 1)
        return 2 * tokens * linear + attention + 2 * config.vocab_size * config.hidden_size * head

    def _prefill(self, chunk: int, limit: float) -> Result:
        tokens = self.sizes.prompt
        took = self.clock.seconds(lambda: self._compute_prompt(chunk), 2)
        rate = self._operations(tokens, head=True) / took
        if chunk == tokens:
            self._seconds[self._form, "prompt"] = took
        how = "whole" if chunk == tokens else f"in chunks of {chunk}"
        result = {
            "what": self._named(f"prompt of {tokens}, {how}"),
            "value": rate / 1e12,
            "unit": "TFLOP/s",
            "ms": took * 1e3,
        }
        share = rate / limit
        return result | {"share": share, "of": "the product"} | _aim(share, self.sizes.prefill_share, chunk == tokens)

    def _compute_prompt(self, chunk: int) -> None:
        tokens = [index % self.sizes.config.vocab_size for index in range(self.sizes.prompt)]
        blocks = range(self.sizes.blocks_of(len(tokens)))
        for start in range(0, len(tokens), chunk):
            piece = tokens[start : start + chunk]
            self._model.step([Row(piece, start, blocks, int(start + len(piece) == len(tokens)))])
            self._model.capture_missing()

    def _decoded_bytes(self, rows: int) -> float:
        """Bytes read by a step in which this number of rows decode."""
        return self._read(rows) + rows * self.sizes.context * self.sizes.token_bytes(self.dtype)

    def _read(self, rows: int) -> float:
        """Bytes of weights in a step: all but the table of embeddings, where that is not the head's, and experts that
        no token chooses, if all are chosen equally often."""
        config = self.sizes.config
        table = config.vocab_size * config.hidden_size * self.dtype.itemsize
        read = self._model.backend.nbytes - (0 if config.tie_word_embeddings else table)
        if config.experts is None:
            return read
        routing = config.experts.routing
        return read - self._expert_bytes(config.experts) * (1 - routing.active / routing.count) ** rows

    def _expert_bytes(self, experts: ExpertsConfig) -> float:
        config = self.sizes.config
        name = experts.shape(config.architecture, config.hidden_size, 0).down(0)
        form = self._weights.grouped_form(f"{name}.weight")
        bits = form.bits if form else 8 * self.dtype.itemsize
        layers = config.layers - len(experts.dense_layers)
        return layers * experts.routing.count * 3 * config.hidden_size * experts.inner * bits / 8

    def _named(self, what: str) -> str:
        return f"{self._form}: {what}" if self._form else what

    def _rows(self, count: int) -> str:
        return f"{count} row{'s' if count > 1 else ''} at {self.sizes.context}"


def _aim(share: float, least: float, aimed: bool) -> Result:
    return {"aim": f"at least {least:.0%}", "met": share >= least} if aimed else {}


def on_gpu(shape: str) -> ModelBench:
    """Raises MemoryError where the model does not fit."""
    sizes, place = SHAPES[shape], torch.device("cuda", 0)
    torch.cuda.empty_cache()  # what tests and other benchmarks have left
    free, needed = torch.cuda.mem_get_info(place)[0], sizes.memory(torch.bfloat16)
    if free < needed:
        raise MemoryError(
            f"{shape} needs {needed / 1e9:.0f} GB of memory, of which {torch.cuda.get_device_name(place)} has "
            f"{free / 1e9:.0f} GB free: use a GPU with more, or --shape tiny"
        )
    return ModelBench(sizes, Cuda(place), torch.bfloat16, CudaClock(place), FORMS[shape])


def interpreted(shape: str) -> ModelBench:
    """A tiny shape in Triton's interpreter: shows that all of it runs. Its figures say nothing."""
    return ModelBench(SHAPES[shape], Interpreted(), torch.float32, HostClock(), FORMS["llama-3-8b"][:1])


def table(machine: dict[str, Any], result: list[Result]) -> str:
    """For a person, and for the docs."""
    lines = [", ".join(f"{name} {value}" for name, value in machine.items()), ""]
    lines += ["| what | figure | share | aim |", "| --- | ---: | --- | --- |"]
    for each in result:
        share = f"{each['share']:.1%} of {each['of']}" if "share" in each else ""
        aim = f"{each['aim']}: {'met' if each['met'] else 'MISSED'}" if "aim" in each else ""
        lines.append(f"| {each['what']} | {_figure(each)} | {share} | {aim} |")
    return "\n".join(lines)


def _figure(each: Result) -> str:
    if "equal" in each:
        return "yes" if each["equal"] else "NO"
    return f"{each['value']:,.2f} {each['unit']}" if "unit" in each else str(each["value"])
