"""Whatever a request asks of sampling: it is refused or answered, the cache stays, and nobody else notices."""

import math
import zlib

import pytest
import torch

from legato_engine.sampling.sampler import sample
from legato_engine.scheduler.batch import Batch, StepOutput
from legato_engine.validity import frame_fault
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.sampling_limits import LOGIT_BIAS, MAX_LOGPROBS, RANGES
from legato_protocol.stream import Generate

VOCABULARY = 64
PROMPT = list(range(1, 23))
OTHER = list(range(30, 50))


@pytest.fixture(scope="module")
def make_runner(make_token_runner):
    class LogitsRunner(make_token_runner):
        """Draws from logits that follow from what the arena holds, by the sampler that a model's runner uses."""

        poisoned = ()  # prompts whose logits are not finite

        def step(self, batch: Batch) -> StepOutput:
            self.steps += 1
            for source, target in batch.copies:
                self.arena.copy(source, target)
            known = [self.write(row) for row in batch.rows]
            draws = [draw for row in batch.rows for draw in row.draws]
            lines = [tokens for tokens, row in zip(known, batch.rows, strict=True) for _ in row.draws]
            if not draws:
                return tuple(() for _ in batch.rows)
            drawn = iter(sample(torch.stack([self._logits(line) for line in lines]), draws, list(range(len(draws)))))
            return tuple(tuple(next(drawn) for _ in row.draws) for row in batch.rows)

        def _logits(self, tokens: list[int]) -> torch.Tensor:
            generator = torch.Generator().manual_seed(zlib.crc32(pack_tokens(tokens)))
            logits = torch.randn(VOCABULARY, generator=generator) * 5
            if any(tokens[: len(prompt)] == list(prompt) for prompt in self.poisoned):
                logits[3] = math.nan
            return logits

    return LogitsRunner


class Served:
    """A core with something in its cache and a bystander that runs."""

    def __init__(self, world, runner, undisturbed):
        self.world = world
        self.undisturbed = undisturbed
        self.worker = world.worker("u", runner=runner, link=False, max_length=48)
        self.ask("warm", PROMPT, max_tokens=4)
        world.run(8)
        self.cached = set(self.worker.scheduler.pool.cache)
        self.ask("bystander", OTHER, max_tokens=16)
        world.run(5)

    def ask(self, id, prompt, **params):
        """What the worker's server does with a gateway's frame: why it is refused, or None."""
        wanted = {"stop_token_ids": (), **params}
        frame = Generate(id, 1, self.world.sequence(prompt, **wanted))
        fault = frame_fault(frame, VOCABULARY)
        if fault is None:
            self.worker.tell(frame)
        return fault

    def check(self, id):
        """The cache is kept, and the bystander's tokens are what they are without the other."""
        self.world.run(32)
        assert self.cached <= set(self.worker.scheduler.pool.cache)
        assert self.worker.tokens("bystander") == self.undisturbed
        assert not [failed for failed in self.worker.failures() if failed.id != id]
        assert self.worker.used == 0


@pytest.fixture(scope="module")
def undisturbed(make_world, make_runner):
    """What the bystander is told where nobody else is."""
    world = make_world()
    worker = world.worker("alone", runner=make_runner(), link=False)
    worker.tell(Generate("bystander", 1, world.sequence(OTHER, max_tokens=16, stop_token_ids=())))
    world.run(24)
    world.close()
    return worker.tokens("bystander")


@pytest.fixture
def served(world, make_runner, undisturbed):
    return Served(world, make_runner(), undisturbed)


def extremes():
    for name, interval in RANGES.items():
        yield from ((name, value) for value in (interval.least, interval.most))
    for value in (LOGIT_BIAS.least, LOGIT_BIAS.most):
        yield "logit_bias", dict.fromkeys(range(VOCABULARY), value)
    yield "logprobs", MAX_LOGPROBS
    yield "allowed_token_ids", (3,)
    yield "bad_words", tuple((token,) for token in range(VOCABULARY - 1))


@pytest.mark.parametrize(("name", "value"), list(extremes()), ids=lambda value: str(value)[:24])
def test_a_parameter_at_its_extremes_is_answered(served, name, value):
    params = {"max_tokens": 8, "temperature": 1e-5, "logprobs": 3, "min_tokens": 2, name: value}
    assert served.ask("extreme", [*PROMPT, 9], **params) is None
    served.check("extreme")
    assert served.worker.failures() == []
    assert served.worker.finished(id="extreme")
    told = [one for item in served.worker.items("extreme") for one in item.logprobs]
    assert all(math.isfinite(one.logprob) for logprobs in told for one in (logprobs, *logprobs.top))


@pytest.mark.parametrize(("name", "value"), [("top_p", math.nan), ("stop_token_ids", tuple(range(VOCABULARY)))])
def test_one_beyond_them_is_refused_by_name_and_nobody_notices(served, name, value):
    """Which are: see test_validity."""
    assert name in served.ask("extreme", [*PROMPT, 9], max_tokens=8, **{name: value})
    served.check("extreme")
    assert served.worker.failures() == []


def test_all_parameters_at_once_leave_finite_logits(served):
    params = {
        "repetition_penalty": 0.01,
        "presence_penalty": -2.0,
        "frequency_penalty": -2.0,
        "temperature": 1e-5,
        "logit_bias": dict.fromkeys(range(VOCABULARY), 100.0),
        "min_p": 1.0,
        "top_p": 0.0,
        "top_k": 1,
    }
    assert served.ask("extreme", [*PROMPT, 9], max_tokens=20, **params) is None
    served.check("extreme")
    assert len(served.worker.tokens("extreme")) == 20


def test_a_penalty_that_no_check_stopped_costs_nobody_a_block(served):
    """A core that is told such a thing all the same, by a server of another version."""
    params = {"max_tokens": 8, "stop_token_ids": (), "repetition_penalty": 1e-40}
    served.worker.tell(Generate("extreme", 1, served.world.sequence([*PROMPT, 9], **params)))
    served.check("extreme")
    assert len(served.worker.tokens("extreme")) == 8


def test_a_sequence_whose_own_logits_are_not_finite_faults_and_takes_only_its_own_blocks(served):
    poisoned = [*PROMPT, *range(50, 60)]
    served.worker.runner.poisoned = (poisoned,)
    assert served.ask("poisoned", poisoned, max_tokens=8) is None
    served.check("poisoned")
    (failed,) = served.worker.failures()
    assert (failed.id, failed.code, failed.part, failed.retry) == ("poisoned", "faulted", "decode", True)
    assert "finite" in failed.message
    served.ask("again", PROMPT, max_tokens=4)
    served.world.run(8)
    assert served.worker.items("again")[0].cached_tokens == len(PROMPT) // 4 * 4
