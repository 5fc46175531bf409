"""Whole small models: every step gives the logits that a plain forward gives for the same sequence."""

from collections.abc import Callable
from dataclasses import replace

import plain_model
import torch
from made_model import LLAMA_3_8B, MadeModel, MadeWeights, Row
from places import Place, over
from recorded_graphs import RecordedGraphs

from legato_engine.backends.cuda.device import Cuda
from legato_engine.backends.cuda.workspace import Room
from legato_engine.kernels.routing import ExpertRouting
from legato_engine.models.hyperparameters.experts import ExpertsConfig

LLAMA = replace(
    LLAMA_3_8B, layers=4, hidden_size=768, heads=12, kv_heads=3, head_dim=64, intermediate_size=1000, vocab_size=3001
)
FAMILIES = {
    "llama": LLAMA,
    "qwen3": replace(LLAMA, architecture="Qwen3ForCausalLM", head_dim=128, kv_heads=12, tie_word_embeddings=True),
    # All experts compute each token: where some are chosen, roundings in 16 bits choose others.
    "qwen3 moe": replace(LLAMA, architecture="Qwen3MoeForCausalLM", experts=ExpertsConfig(ExpertRouting(4, 4), 264)),
    "gemma3": replace(
        LLAMA,
        architecture="Gemma3ForCausalLM",
        tie_word_embeddings=True,
        sliding_window=24,
        full_attention=(1, 3),
        local_rope_theta=10000.0,
        attention_scale=0.1,
        embedding_multiplier=28.0,
        norm_offset=1.0,
    ),
}
SMALL = {"layers": 1, "hidden_size": 60, "heads": 4, "intermediate_size": 100, "vocab_size": 333, "head_dim": 32}
# Of the length of the difference to that of the logits, for the worst token.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ROWS, FURTHER = 8, 4  # rows of a step, tokens of each sequence after its prompt
LENGTHS = (100, 5, 63, 211)  # of prompts
SMALL_LENGTHS = (20, 3, 9, 29)


class Captures(Cuda):
    """A GPU that counts what is captured on it, and what is replayed."""

    def __init__(self, place: torch.device) -> None:
        super().__init__(place)
        self.captured = self.replayed = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        again = super().capture(work)

        def replay() -> None:
            self.replayed += 1
            again()

        return replay


class Sequences:
    """Random sequences of one model. Their blocks lie anywhere, and memory that nothing was written to is NaN."""

    def __init__(self, place: Place, dtype: torch.dtype, family: str, size: int) -> None:
        config = FAMILIES[family]
        if place.small:
            config = replace(config, **SMALL, kv_heads=2)  # type: ignore[arg-type]
        self.dtype, self.size = dtype, size
        self.device = RecordedGraphs(place.processors) if place.small else Captures(place.device)
        self.weights = MadeWeights(config, dtype, torch.device("cpu"))
        self.lengths = SMALL_LENGTHS if place.small else LENGTHS
        counts = [-(-(length + FURTHER) // size) for length in self.lengths]
        room = Room(64, ROWS, 2 * max(counts), size, samples=2 * ROWS)
        self.model = MadeModel(self.weights, dtype, self.device, room, sum(counts))
        self.model.capture()
        self.model.arena.fill_(torch.nan)
        free = iter(torch.randperm(sum(counts)).tolist())
        self.tokens = [torch.randint(config.vocab_size, (length + FURTHER,)).tolist() for length in self.lengths]
        self.blocks = [[next(free) for _ in range(count)] for count in counts]
        self.expected = [plain_model.logits(self.weights, tokens) for tokens in self.tokens]

    def row(self, index: int, start: int, end: int, samples: int = 1) -> Row:
        """Tokens `start` … `end - 1` of a sequence, of which at most the last `samples` sample."""
        return Row(self.tokens[index][start:end], start, self.blocks[index], min(samples, end - start))

    def check(self, rows: list[tuple[int, int, int]], samples: int = 1) -> None:
        """Computes rows (sequence, start, end) in one step, and compares what follows each of their tokens."""
        given = [self.row(*row, samples) for row in rows]
        found = self.model.step(given)
        whole = [self.expected[index][start:end] for index, start, end in rows]
        self.near(found, torch.cat([each[len(each) - row.samples :] for each, row in zip(whole, given, strict=True)]))
        self.near(self.model.every(sum(map(len, whole))), torch.cat(whole))

    def near(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        away = (found.cpu() - expected).norm(dim=1) / expected.norm(dim=1)
        assert bool((away <= TOLERANCE[self.dtype]).all()), f"off by {away.tolist()}"  # NaN is not


@over({"family": tuple(FAMILIES)}, size=(16, 64))
@torch.inference_mode()
def test_a_prompt_whole_in_chunks_and_behind_a_cached_prefix(
    place: Place, dtype: torch.dtype, family: str, size: int
) -> None:
    run = Sequences(place, dtype, family, size)
    whole, _, _, long = run.lengths
    run.check([(0, 0, whole)])
    ends = (long // 2, long // 2 + 1, long // 2 + 9, long)  # one token, and few enough to be attended as decoding ones
    run.check([(3, 0, ends[0])], samples=0)
    run.check([(3, ends[0], ends[1])], samples=0)
    run.check([(3, ends[1], ends[2])], samples=0)
    run.check([(3, ends[2], ends[3])])

    shared = long // size  # blocks
    run.tokens.append([*run.tokens[3][: shared * size], *run.tokens[1]])
    run.blocks.append([*run.blocks[3][:shared], *run.blocks[1]])
    run.expected.append(plain_model.logits(run.weights, run.tokens[4]))
    run.check([(4, shared * size, len(run.tokens[4]))])


@over(family=tuple(FAMILIES), size=(16, 64))
@torch.inference_mode()
def test_prompts_beside_sequences_that_decode(place: Place, dtype: torch.dtype, family: str, size: int) -> None:
    run = Sequences(place, dtype, family, size)
    first, second, third, long = run.lengths
    run.check([(0, 0, first), (1, 0, second)])
    run.check([(1, second, second + 1), (2, 0, third), (0, first, first + 1), (3, 0, long // 2)])
    run.check([(0, first + 1, first + 2), (2, third, third + 1), (3, long // 2, long)])
    run.check([(3, long, long + 1), (2, third + 1, third + 2), (0, first + 2, first + 3)])


@over({"family": tuple(FAMILIES)}, size=(16, 64))
@torch.inference_mode()
def test_replayed_steps_are_eager_ones_bit_for_bit(place: Place, dtype: torch.dtype, family: str, size: int) -> None:
    """Each step is replayed twice: padded to a captured size that is near, and to its own, which is captured then. Rows
    of few tokens sample after each of them. Rows of a step that is launched after another one name their tokens by
    their place among those drawn there."""
    run = Sequences(place, dtype, family, size)
    first, second, third, long = run.lengths
    steps = (
        [(0, 0, first), (1, 0, second)],
        [(1, second, second + 1), (2, 0, third), (0, first, first + 1), (3, 0, long // 2)],
        [(3, long // 2, long // 2 + 7), (0, first + 1, first + 3), (1, second + 1, second + 2)],
        [(3, long // 2 + 7, long)],
        [(2, third, third + 1), (3, long, long + 1), (1, second + 2, second + 3)],
    )
    for rows in steps:
        samples = 8 if rows is steps[2] else 1
        run.check(rows, samples)
        run.model.capture_missing()
        given = [run.row(*row, samples) for row in rows]
        eager = run.model.eager(given)
        expected = eager[: sum(row.samples for row in given)].clone()
        eager.fill_(torch.nan)  # a step that computed nothing would leave there what is right
        found = run.model.step(given)
        assert torch.equal(found, expected)
    drawn, expected = place.ints([row.tokens[0] for row in (given[1], given[2], given[0])]), found.clone()
    found.fill_(torch.nan)
    named = [row._replace(tokens=[-1 - index]) for row, index in zip(given, (2, 0, 1), strict=True)]
    captured = run.device.captured
    assert torch.equal(run.model.step(named, drawn), expected)
    assert (run.device.captured, run.device.replayed) == (captured, 2 * len(steps) + 1)
    if isinstance(run.device, RecordedGraphs):
        assert run.device.allocating == set()
