"""Shared by tests of the engine: the real model, prompts of every kind, and transformers as the oracle."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import interpreted_bfloat16
import pytest
import quick_interpreter
import torch
import uninterpreted
import window_tables
from huggingface_oracle import huggingface_model, smollm2_path

from legato_engine import processor
from legato_engine.models.config import ModelConfig
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, Draw, Row
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling.parameters import SamplingParams

# As at the start of a worker: transformers may compute before a runner is loaded, and oneDNN reads its settings once.
processor.guard_onednn(processor.detect())
quick_interpreter.use()
interpreted_bfloat16.use()

NEW_TOKENS = 32
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
        windows = window_tables.of_row(runner, part.blocks, part.start)
        rows.append(Row(part.tokens, part.start, part.blocks, draws, windows=windows))
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
    """Checks greedy output by transformers on the same weights: one forward over prompt and output."""

    def __init__(self, checkpoint: Checkpoint, e4m3: bool = False) -> None:
        self._checkpoint, self._e4m3 = checkpoint, e4m3

    def check(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Asserts that each token is the best one after those before it, or tied with it: its logit is at most `TIE`
        below."""
        logits = self.logits(prompt, output)
        behind = logits.max(-1).values - logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        worst = int(behind.argmax())
        assert behind[worst] <= TIE, f"token {worst} of {list(output)} is {behind[worst]:.4f} behind"

    def logits(self, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
        """Logits of each token of `output`, after all that is before it: [len(output), vocabulary]."""
        tokens = torch.tensor([[*prompt, *output[:-1]]])
        with torch.inference_mode():
            logits: torch.Tensor = self._model(input_ids=tokens, logits_to_keep=len(output)).logits[0]
        return logits.clone()

    @cached_property
    def _model(self) -> torch.nn.Module:
        return huggingface_model(self._checkpoint, self._checkpoint.config, self._e4m3)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_compiled_any_more() -> Iterator[None]:
    yield
    uninterpreted.stop()


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    return open_weights(smollm2_path())


@pytest.fixture
def oracle_of() -> Callable[..., Oracle]:
    return Oracle


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
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(smollm2_path().parent, gguf_file=smollm2_path().name)


@pytest.fixture(scope="session")
def prompts(smollm2_tokenizer: Any) -> list[list[int]]:
    """Eight prompts as ids of SmolLM2: short ones, long ones, multi-byte text and chats."""
    story = "The lighthouse keeper wrote down the weather, the ships and the birds of every day. "
    texts = [
        "The capital of France is",
        "def fibonacci(n):\n    ",
        story * 5,
        "日本の首都は東京です。フランスの首都は",
        "Emoji: 🙂🚀🌍 and accents: éàüñ çøå. Continue: 🙂🚀",
        _chat("What is gravity?"),
        _chat("Übersetze ins Englische: Der Hund schläft im Garten."),
        story * 120,
    ]
    return [smollm2_tokenizer(text, add_special_tokens=False)["input_ids"][:100] for text in texts]


def _chat(question: str) -> str:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
