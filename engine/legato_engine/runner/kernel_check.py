"""Checks, on a machine without a GPU, that all kernels of a worker compile for one:

    python -m legato_engine.runner.kernel_check MODEL QUANTIZATION DTYPE KV_DTYPE BLOCK_SIZE CHIP SHARED PROCESSORS

The first five are settings of a worker; SHARED and PROCESSORS are fields of `kernels.gpu.chips.Chip`. With exit code
1, stdout names the first kernel that does not compile and stderr has the reason. Compiled kernels stay in Triton's
cache for workers. Only quantized weights are read, one of each shape and form; a folder with nothing but a config.json
is a model without any.

With two more arguments, this is one of the `compilers.CompileProcesses` of a worker, and compiles a share of them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from legato_engine import compilers
from legato_engine.backends.cuda import device
from legato_engine.backends.cuda.compiling import compiling
from legato_engine.kernels.gpu import ahead
from legato_engine.kernels.gpu.block_sums import sum_blocks
from legato_engine.kernels.gpu.chips import Chip
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.prepared import Complete
from legato_engine.kvcache.window_table import WindowTable
from legato_engine.models import config as configs
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.sampling.device_sampler import DeviceSampler
from legato_engine.scheduler.batch import Draw, Row
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.config_file import CONFIG, read_json
from legato_engine.weights.expected import expected_shapes
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.grouped import Grouped, GroupedForm
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling.parameters import SamplingParams

_NOWHERE, _HOST = torch.device("meta"), torch.device("cpu")
_SUMMED = 16  # blocks whose checksums are computed
_ROWS = (16, 2, 1)  # that decode: Triton compiles separately for 1, for multiples of 16, and for other numbers


class Absent:
    """Implements `Device`: a GPU on which nothing runs. Only results that are read back have memory, on the host."""

    def __init__(self, chip: str, processors: int, place: torch.device = _NOWHERE) -> None:
        self.place = place
        self.chip = chip
        self.processors = processors
        self.dtypes = device.DTYPES

    def host(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32)

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.place)

    def write(self, memory: torch.Tensor, contents: torch.Tensor) -> None:
        """Nothing."""

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work  # nothing to capture: its kernels were launched before


class Shapes(Checkpoint):
    """The tensors of a model without their contents, quantized as in the model's file."""

    fingerprint = ""

    def __init__(self, weights: Checkpoint) -> None:
        self.config = weights.config
        self._weights = weights
        self._shapes = expected_shapes(weights.config)
        self._codes: dict[object, Grouped] = {}

    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        return {}

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def tensor(self, name: str) -> torch.Tensor:
        return torch.empty(self._shapes[name], device=_NOWHERE)

    def quantized(self) -> frozenset[str]:
        return self._weights.quantized()

    def grouped_form(self, name: str) -> GroupedForm | None:
        return self._weights.grouped_form(name)

    def grouped(self, name: str, _place: torch.device | None = None) -> Grouped | None:
        key = self._shapes[name], self.grouped_form(name)
        if key not in self._codes and (codes := self._weights.grouped(name)) is not None:
            self._codes[key] = codes
        return self._codes.get(key)


class Outline(Checkpoint):
    """A model of 16 bits of which only the config is known."""

    fingerprint = ""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.config = configs.from_huggingface(read_json(folder / CONFIG), f"{folder}/{CONFIG}")

    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        return {}

    def names(self) -> frozenset[str]:
        return frozenset()

    def shape(self, name: str) -> tuple[int, ...]:
        return expected_shapes(self.config)[name]

    def tensor(self, name: str) -> torch.Tensor:
        return torch.empty(self.shape(name), device=_NOWHERE)


def opened(path: Path, quantization: str) -> Checkpoint:
    """Raises ModelError."""
    if path.is_dir() and [file.name for file in path.iterdir()] == [CONFIG]:
        return Outline(path)
    return open_weights(path, quantization)


def launch_all(weights: Checkpoint, dtype: str, kv_dtype: str, block_size: int, chip: str, processors: int) -> None:
    """Launches every kernel of a worker: steps of all kinds, sampling, checksums.

    Raises EngineError and the errors of compilers.
    """
    config = weights.config
    runner = Runner.load(
        Shapes(weights),
        RunnerOptions(
            block_size=block_size,
            kv_cache_bytes=1 << 40,
            dtype=dtype,
            kv_dtype=kv_dtype,
            max_length=config.max_length,
            gpu=Absent(chip, processors),
        ),
    )
    greedy = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
    windows = (WindowTable(0, [0]),) * len(runner.layout.windows)
    with torch.inference_mode():
        steps = (block_size, 1), (block_size, 2), *((1, rows) for rows in _ROWS), *runner.further_steps
        for tokens, rows in steps:
            prompt = [0] * tokens
            draws = (Draw(0, tokens, greedy, prompt, tokens),)
            runner.logits((Row(prompt, 0, [0], draws, windows=windows),) * rows)
        runner.warm_up_adapter(runner.adapter({}))
        DeviceSampler(Absent(chip, processors, _HOST), config.vocab_size, 1).warm_up()
        words = torch.empty(_SUMMED, runner.layout.block_bytes // 8, dtype=torch.int64, device=_NOWHERE)
        ids = torch.empty(_SUMMED, dtype=torch.int32, device=_NOWHERE)
        with compiling(chip):
            sum_blocks(words, ids, words[0], choose("sum_blocks", {}, chip))


def complete(weights: Checkpoint, dtype: str, kv_dtype: str, block_size: int, chip: str) -> Complete:
    """The mark of a cache with the kernels of `launch_all`."""
    formats = weights.quantization, dtype.lower(), kv_dtype.lower()
    return Complete(repr(weights.config), *formats, str(block_size), chip)


def main(
    model: str, quantization: str, dtype: str, kv_dtype: str, block_size: str, chip: str, shared: str, processors: str,
    *shared_work: str,
) -> int:  # fmt: skip
    limits, claims = Chip(int(shared), int(processors)), compilers.claims(*shared_work) if shared_work else None
    with ahead.compilations(claims.take if claims else None) as kernels, ahead.launches(chip, limits):
        try:
            weights = opened(Path(model), quantization)
            launch_all(weights, dtype, kv_dtype, int(block_size), chip, limits.processors)
        except Exception as error:  # of the model, Triton or a compiler: a worker would not start with any of them
            if claims is None:
                print(*kernels[-1:])
            print(error, file=sys.stderr)
            return 1
    if claims is None:
        complete(weights, dtype, kv_dtype, int(block_size), chip).mark()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
