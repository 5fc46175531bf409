"""A runner whose GPU samples: tokens, faults and logprobs of its steps are those of the logits it computes."""

from typing import Any

import numpy as np
import pytest
from interpreted_models import LLAMA, load, prompts
from tiny_models import RandomCheckpoint

from legato_engine.runner.runner import Runner
from legato_engine.sampling.sampler import sample
from legato_engine.scheduler.batch import Batch, DeadEnd, Draw, Row, Targets
from legato_protocol.sampling.parameters import SamplingParams

# The interpreter warns where distances between infinities are computed, which no result depends on.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value|overflow:RuntimeWarning")

VOCAB = LLAMA.vocab_size
PROMPT = prompts(VOCAB, (20,))[0]


class Only:
    """A constraint that allows these tokens, or none."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens

    def allowed(self, output: Any, stops: Any, early: bool) -> bytes:
        if not self._tokens:
            raise DeadEnd("nothing may follow")
        bits = np.zeros(VOCAB, np.bool_)
        bits[list(self._tokens)] = True
        return np.packbits(bits, bitorder="little").tobytes()

    def at_start(self) -> "Only":
        return self


@pytest.fixture(scope="module")
def runner() -> Runner:
    return load(RandomCheckpoint(LLAMA))


def drawing(block: int, *draws: Draw, targets: Targets | None = None) -> Row:
    return Row(PROMPT, 0, [block, block + 1], draws, targets)


def draw(constraint: Only | None = None, **changes: Any) -> Draw:
    params = SamplingParams(**{"max_tokens": 8, "seed": 3} | changes)
    return Draw(0, len(PROMPT), params, PROMPT, len(PROMPT), constraint)


def test_a_step_samples_from_its_logits(runner: Runner) -> None:
    only = (7, 9, 200)
    rows = (
        drawing(0, draw(temperature=0.0, logprobs=2)),
        Row(PROMPT, 0, [2, 3]),
        drawing(4, draw(top_p=0.9), draw(seed=8, repetition_penalty=1.5)),
        drawing(6, draw(Only(*only))),
        drawing(8, draw(Only())),
    )
    logits = runner.logits(rows).clone()
    first, nothing, choices, constrained, ended = runner.step(Batch(rows))
    expected = sample(logits, [*rows[0].draws, *rows[2].draws], [0, 1, 1])
    assert [one.token for one in (*first, *choices)] == [one.token for one in expected]
    assert first[0].logprobs is not None
    assert expected[0].logprobs is not None
    assert first[0].logprobs.logprob == pytest.approx(expected[0].logprobs.logprob, abs=1e-5)
    assert nothing == ()
    assert constrained[0].token in only
    assert ended[0].fault == "nothing may follow"


def test_steps_are_collected_after_the_next_one_was_launched(runner: Runner) -> None:
    """Logits of both steps are in the same memory."""
    batches = [Batch((drawing(0, draw(seed=seed)), drawing(2, draw(temperature=0.0)))) for seed in range(4)]
    expected = [runner.step(batch) for batch in batches]
    first, second = runner.launch(batches[0]), runner.launch(batches[1])
    assert [runner.collect(first), runner.collect(second)] == expected[:2]


def test_logprobs_of_a_prompt_leave_the_sampled_token_alone(runner: Runner) -> None:
    """They are computed into the memory of the step's logits."""
    given = draw(temperature=0.0, logprobs=1)
    ((alone,),) = runner.step(Batch((drawing(0, given),)))
    (scored,) = runner.step(Batch((drawing(0, given, targets=Targets(PROMPT[1:], 2)),)))
    assert scored.sampled == (alone,)
