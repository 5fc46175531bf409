"""With drafts, everything is as without them: text, logprobs, finish reasons and faults, for every seed."""

from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import pytest
import torch
from budget import times
from grammar_vocabulary import COMPILER, END, TOKENS
from tiny_models import RandomCheckpoint, llama

from legato_engine.grammars.position import GrammarPosition
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.models.config import ModelConfig
from legato_engine.runner.drafting.draft_model import DraftModel
from legato_engine.runner.drafting.speculating_runner import SpeculatingRunner
from legato_engine.runner.interface import StepRunner
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.sampling.sampler import sample
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.scheduler.speculation import drafters
from legato_engine.scheduler.speculation.drafter import Draft
from legato_engine.scheduler.speculation.model_drafter import DraftLimits
from legato_protocol.sampling.parameters import REGEX, SamplingParams

GRAMMARS = [COMPILER.compile(REGEX, regex) for regex in ("(ab|ba){9}", "[a-c]{1,40}", "(abc?)+d")]
FEW = tuple(b"abcd")  # text of few tokens repeats itself
REQUESTS = 5  # in one history


CONFIG = llama(vocab_size=len(TOKENS))
BLOCKS = 40


def loaded(config: ModelConfig) -> Runner:
    options = RunnerOptions(
        block_size=4, kv_cache_bytes=4 << 20, dtype="float32", threads=1, max_length=config.max_length, drafts=7
    )
    return Runner.load(RandomCheckpoint(config), options)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return loaded(replace(CONFIG, max_length=48))


# The model itself, in two groups of layers, is right; another one hardly ever is.
DRAFT_MODELS = {
    "itself": replace(CONFIG, max_length=48, sliding_window=64, full_attention=frozenset({0})),
    "another": replace(CONFIG, max_length=40, layers=1),
}
RIGHT = {"PromptLookup": 20, "itself": 100, "another": 20}  # drafts, at least


@pytest.fixture(scope="module", params=["PromptLookup", *DRAFT_MODELS])
def drafting(request: pytest.FixtureRequest, runner: Runner) -> tuple[StepRunner, DraftLimits | None, int]:
    """The runner with a draft model, the limits of that model, and the least number of right drafts."""
    if request.param == "PromptLookup":
        return runner, None, RIGHT[request.param]
    model = DraftModel(loaded(DRAFT_MODELS[request.param]), len(TOKENS), len(TOKENS))
    return SpeculatingRunner(runner, model), model.limits, RIGHT[request.param]


def some_params(random: Random) -> SamplingParams:
    def perhaps(value: Any, other: Any) -> Any:
        return value if random.random() < 0.3 else other

    return SamplingParams(
        max_tokens=random.randrange(1, 40),
        seed=random.randrange(1 << 60),
        temperature=random.choice([0.0, 0.0, 0.5, 1.5]),
        top_p=perhaps(0.8, 1.0),
        top_k=perhaps(3, 0),
        repetition_penalty=perhaps(1.2, 1.0),
        frequency_penalty=perhaps(0.3, 0.0),
        presence_penalty=perhaps(-0.5, 0.0),
        allowed_token_ids=random.choice([(), FEW, FEW[:2]]),
        bad_words=perhaps(((FEW[0], FEW[1], FEW[0]),), ()),
        min_tokens=perhaps(6, 0),
        stop_token_ids=(END, *perhaps((FEW[2],), ())),
        logprobs=perhaps(2, None),
        prompt_logprobs=perhaps(1, None),
    )


def some_requests(seed: int) -> list[Request]:
    random, requests = Random(seed), []
    for number in range(REQUESTS):
        prompt = random.choices(FEW, k=random.randrange(1, 24))
        params, grammar = some_params(random), random.choice([None, None, *GRAMMARS])
        choices = tuple(range(random.choice([1, 1, 1, 3])))
        position = GrammarPosition(grammar) if grammar is not None and not params.allowed_token_ids else None
        requests.append(
            Request(str(number), 1, prompt, len(prompt), params, 1e9, choices, number % 2, grammar=position)
        )
    return requests


def answers(runner: StepRunner, seed: int, drafts: int, draft: DraftLimits | None = None) -> tuple[dict[Any, Any], int]:
    """Tokens, logprobs and finish reason or fault of each choice, and how many drafts were right.

    There are too few blocks for all, so that some are preempted, and they arrive one after the other.
    """
    limits = SchedulerLimits("unified", 4, max_length=48, chunk_tokens=7, max_running=6, growth_tokens=1, drafts=drafts)
    pool = BlockPool(BLOCKS, EventLog("epoch"))
    drafter = drafters.make("None" if not drafts else "PromptLookup" if draft is None else "Draft", pool, 4, draft)
    scheduler = Scheduler(limits, pool, "revision", drafter)
    waiting, made, accepted = some_requests(seed), dict[Any, Any](), 0
    while waiting or not scheduler.idle:
        if waiting:
            scheduler.add(waiting.pop(), 0.0)
        batch = scheduler.schedule(0.0)
        if batch is None:
            continue
        result = scheduler.process(batch, runner.step(batch), 0.0)
        scheduler.check_integrity()
        pool.events.take()
        accepted += result.accepted
        for emission in result.emissions:
            got = made.setdefault((emission.request.id, emission.choice), [])
            assert emission.index == len(got)
            got += [(one.token, one.logprobs) for one in emission.sampled] + [emission.finish] * bool(emission.finish)
        for request, fault in result.faulted:
            made[request.id, request.choices, "fault"] = fault
    return made, accepted


def test_text_logprobs_and_ends_are_the_same(
    runner: Runner, drafting: tuple[StepRunner, DraftLimits | None, int]
) -> None:
    right, (speculating, draft, least) = 0, drafting
    for seed in range(times(6)):
        plain, _ = answers(runner, seed, 0)
        drafted, accepted = answers(speculating, seed, 1 + seed % 7, draft)
        right += accepted
        assert drafted.keys() == plain.keys()
        for key, expected in plain.items():
            assert [_token(one) for one in drafted[key]] == [_token(one) for one in expected], (seed, key)
            values = zip(_logprobs(drafted[key]), _logprobs(expected), strict=True)
            assert all(found == pytest.approx(value, abs=1e-3) for found, value in values)
    assert right > least


def _token(one: Any) -> Any:
    return one[0] if isinstance(one, tuple) else one


def _logprobs(got: Any) -> list[list[float]]:
    explained = [one[1] for one in got if isinstance(one, tuple) and one[1] is not None]
    return [[each.logprob, *[top.logprob for top in each.top]] for each in explained]


class Insistent:
    """Drafts the same tokens everywhere."""

    def propose(self, request: Request, most: int) -> Draft:
        return Draft([0, 5, 2][:most], [0.5] * min(most, 3))


def test_sampled_tokens_have_the_distribution_of_the_model() -> None:
    """By a chi-square test for each position, where logits depend on the position only."""
    count, vocab = 1000, 8
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(3))
    limits = SchedulerLimits("unified", 4, max_length=48, max_running=64, drafts=3)
    scheduler = Scheduler(limits, BlockPool(512, EventLog("epoch")), "revision", Insistent())

    def add(seed: int) -> None:
        params = SamplingParams(max_tokens=4, seed=seed, temperature=1.0)
        scheduler.add(Request(str(seed), 1, [1, 1], 2, params, 1e9), 0.0)

    seen, accepted, seeds = torch.zeros(8, vocab), 0, iter(Random(1).sample(range(1 << 60), count))
    while not scheduler.idle or (seed := next(seeds, None)) is not None:
        if scheduler.idle:
            for each in (seed, *islice(seeds, 15)):
                add(each)
        batch, output = scheduler.schedule(0.0), []
        for row in batch.rows:
            places = [draw.position for draw in row.draws]
            output.append(tuple(sample(logits[places], row.draws, range(len(places)))) if places else ())
        result = scheduler.process(batch, tuple(output), 0.0)
        accepted += result.accepted
        for emission in result.emissions:
            for place, one in enumerate(emission.sampled, 2 + emission.index):
                seen[place, one.token] += 1
    assert accepted > count / 10
    expected = count * logits.softmax(1)
    chi_square = ((seen - expected) ** 2 / expected).sum(1)[2:6].tolist()
    assert max(chi_square) < 24.3  # 7 degrees of freedom: exceeded once in a thousand
