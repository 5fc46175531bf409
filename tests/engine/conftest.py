"""What tests of the engine share: the real model, prompts of every kind, and transformers as the oracle."""

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import interpreted_bfloat16
import pytest
import quick_interpreter
import torch
import uninterpreted
from huggingface_oracle import huggingface_model, smollm2_path

from legato_engine import processor
from legato_engine.models.config import ModelConfig
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, Draw, Row
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling_params import SamplingParams

# As at the start of a worker: transformers may compute before a runner is loaded, and oneDNN reads its settings once.
processor.guard_onednn(processor.detect())
quick_interpreter.use()
interpreted_bfloat16.use()

NEW_TOKENS = 32
BLOCK_SIZE = 16
TIE = 2e-3  # float32 logits of the two implementations differ by less than this


@dataclass(frozen=True)
class Part:
    """A piece of a sequence to compute: `tokens` from position `start`, in `blocks`; `draw` samples greedily."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    draw: bool = True


def greedy_step(runner: Runner, parts: Sequence[Part]) -> list[int]:
    """One step; the tokens of the parts that draw."""
    params = SamplingParams(max_tokens=NEW_TOKENS, seed=0, temperature=0.0)
    rows = []
    for part in parts:
        end = part.start + len(part.tokens)
        draws = (Draw(0, end, params, part.tokens, end),) if part.draw else ()
        rows.append(Row(part.tokens, part.start, part.blocks, draws))
    return [sampled.token for row in runner.step(Batch(tuple(rows))) for sampled in row]


class Sequences:
    """Sequences of a test in a runner's arena: block tables without sharing, and the loops that compute them."""

    def __init__(self, runner: Runner, prompts: Sequence[Sequence[int]], new_tokens: int = NEW_TOKENS) -> None:
        self.runner = runner
        self.prompts = [list(prompt) for prompt in prompts]
        self.outputs: list[list[int]] = [[] for _ in prompts]
        self.new_tokens = new_tokens
        self.tables, next_block = [], 1
        for prompt in prompts:
            count = runner.layout.blocks_for(len(prompt) + new_tokens)
            self.tables.append(list(range(next_block, next_block + count)))
            next_block += count
        assert next_block <= runner.num_blocks

    def prefill(self, index: int, chunk: int, start: int = 0) -> None:
        """Computes a prompt from `start` on in chunks of at most `chunk` tokens, and its first token."""
        prompt = self.prompts[index]
        for begin in range(start, len(prompt), chunk):
            piece = prompt[begin : begin + chunk]
            last = begin + len(piece) == len(prompt)
            self.outputs[index] += greedy_step(self.runner, [Part(piece, begin, self.tables[index], last)])

    def prefill_together(self, indexes: Sequence[int]) -> None:
        """Computes whole prompts in one step."""
        parts = [Part(self.prompts[i], 0, self.tables[i]) for i in indexes]
        for index, token in zip(indexes, greedy_step(self.runner, parts), strict=True):
            self.outputs[index].append(token)

    def decode(self, indexes: Sequence[int]) -> None:
        """Decodes these sequences in one batch until each has all its tokens."""
        while running := [i for i in indexes if len(self.outputs[i]) < self.new_tokens]:
            parts = [Part(self.outputs[i][-1:], self._length(i) - 1, self.tables[i]) for i in running]
            for index, token in zip(running, greedy_step(self.runner, parts), strict=True):
                self.outputs[index].append(token)

    def mixed_step(self, decoding: Sequence[int], prefilling: int) -> None:
        """One step that decodes some sequences and computes the whole prompt of another."""
        parts = [Part(self.outputs[i][-1:], self._length(i) - 1, self.tables[i]) for i in decoding]
        parts.append(Part(self.prompts[prefilling], 0, self.tables[prefilling]))
        for index, token in zip([*decoding, prefilling], greedy_step(self.runner, parts), strict=True):
            self.outputs[index].append(token)

    def _length(self, index: int) -> int:
        return len(self.prompts[index]) + len(self.outputs[index])


class Oracle:
    """Says whether greedy output is what transformers would give: one forward over prompt and output.

    Answers are kept in a folder that all processes of a test run share, so that however many tests, in whichever
    process, ask about an output, transformers computes it once.
    """

    def __init__(self, load: Callable[[], torch.nn.Module], folder: Path) -> None:
        self._load = load
        self._folder = folder

    def check(self, prompt: Sequence[int], output: Sequence[int], tie: float = TIE) -> int:
        """Asserts that each token is the best one after those before it, or tied with it: its logit is at most `tie`
        below. Returns the ties."""
        behind = self._behind(prompt, output)
        worst = max(range(len(output)), key=behind.__getitem__)
        assert behind[worst] <= tie, f"token {worst} of {list(output)} is {behind[worst]:.4f} behind"
        return sum(logit > 0 for logit in behind)

    def _behind(self, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
        """By how much the logit of each token of `output` is below the best one there."""
        question = hashlib.sha256(json.dumps([list(prompt), list(output)]).encode()).hexdigest()
        answer = self._folder / f"{question}.json"
        with self._alone():  # a process that has the same question waits for the answer
            if not answer.exists():
                answer.write_text(json.dumps(self._compute(prompt, output)))
        found: list[float] = json.loads(answer.read_text())
        return found

    def logits(self, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
        """Those of each token of `output`, after all that is before it: [len(output), vocabulary]."""
        tokens = torch.tensor([[*prompt, *output[:-1]]])
        with torch.inference_mode():
            found: torch.Tensor = self._model(input_ids=tokens, logits_to_keep=len(output)).logits[0]
        return found.clone()

    def _compute(self, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
        logits = self.logits(prompt, output)
        ours = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        return (logits.max(-1).values - ours).tolist()

    @cached_property
    def _model(self) -> torch.nn.Module:
        return self._load()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@pytest.fixture(scope="session", autouse=True)
def nothing_is_compiled_any_more() -> Iterator[None]:
    yield
    uninterpreted.stop()


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    return open_weights(smollm2_path())


@pytest.fixture(scope="session")
def smollm2_float32(smollm2: Checkpoint) -> Runner:
    """The real model in float32, with room for all prompts twice."""
    return Runner.load(
        smollm2, block_size=BLOCK_SIZE, kv_cache_bytes=640 << 20, dtype="float32", threads=1, max_length=4096
    )


@pytest.fixture(scope="session")
def oracle(smollm2: Checkpoint, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Oracle:
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if hasattr(request.config, "workerinput") else own  # pytest-xdist: a folder in it for each
    folder = shared / "oracle"
    folder.mkdir(exist_ok=True)
    return Oracle(lambda: huggingface_model(smollm2, smollm2.config), folder)


@pytest.fixture
def oracle_of(tmp_path: Path) -> Callable[[Checkpoint], Oracle]:
    """transformers on the weights of any checkpoint."""
    return lambda checkpoint: Oracle(lambda: huggingface_model(checkpoint, checkpoint.config), tmp_path)


@pytest.fixture(scope="session")
def huggingface() -> Callable[[Checkpoint, ModelConfig], torch.nn.Module]:
    return huggingface_model


@pytest.fixture
def greedy_draw() -> Draw:
    return Draw(0, 1, SamplingParams(max_tokens=1, seed=0, temperature=0.0), [0], 1)


@pytest.fixture(scope="session")
def sequences() -> Callable[..., Sequences]:
    return Sequences


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    """As transformers has it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(smollm2_path().parent, gguf_file=smollm2_path().name)


@pytest.fixture(scope="session")
def prompts(smollm2_tokenizer: Any) -> list[list[int]]:
    """Sixteen prompts as ids of SmolLM2: short ones, one of 69 whole blocks, multi-byte text and chats."""
    story = "The lighthouse keeper wrote down the weather, the ships and the birds of every day. "
    numbers = "Row {}: the sum of {} and {} is {}. "
    texts = [
        "The capital of France is",
        "Once",
        "def fibonacci(n):\n    ",
        "In 1969 the first people to walk on the Moon were",
        story * 5,
        "".join(numbers.format(i, i, i + 7, 2 * i + 7) for i in range(12)),
        "日本の首都は東京です。フランスの首都は",
        "Привет! Как дела? Я хочу рассказать",
        "Emoji: 🙂🚀🌍 and accents: éàüñ çøå. Continue: 🙂🚀",
        "مرحبا بالعالم",
        _chat("What is gravity?"),
        _chat("Write a haiku about the sea."),
        _chat("Übersetze ins Englische: Der Hund schläft im Garten."),
        _chat("List three colours and explain " + story * 3),
        story * 120,
        "".join(numbers.format(i, i, i + 7, 2 * i + 7) for i in range(25)),
    ]
    return [smollm2_tokenizer(text, add_special_tokens=False)["input_ids"][:1104] for text in texts]


def _chat(question: str) -> str:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
