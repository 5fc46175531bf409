"""Sequences whose output has to match a grammar: the same tokens wherever and however often they are computed."""

import functools
import json
import threading
import time
import zlib

import jsonschema
import msgspec
import pytest
import torch
from grammar_vocabulary import COMPILER, END, EOT, TOKENS, step, text

from legato_engine.grammars import compilations
from legato_engine.grammars.compilations import Compilations
from legato_engine.sampling import constrain
from legato_engine.sampling.sampler import sample
from legato_protocol.sampling.parameters import JSON_SCHEMA, REASONING, SamplingParams
from legato_protocol.sampling.reasoning import ReasoningBounds, ReasoningTokens
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Cancel, Generate, Pause

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": -99, "maximum": 99}, "maxItems": 5},
        "kind": {"enum": ["é", "日本", None]},
    },
    "required": ["name", "sizes", "kind"],
    "additionalProperties": False,
}
ASKED = {"grammar": json.dumps(SCHEMA), "max_tokens": 120, "stop_token_ids": (END, EOT), "temperature": 0.0}
MARKS = ReasoningTokens(ord("~"), ord("^"), open_in_prompt=True)
THINKING = {
    **ASKED,
    "grammar": msgspec.json.encode(ReasoningBounds(MARKS, 30, ASKED["grammar"], JSON_SCHEMA)).decode(),
    "grammar_kind": REASONING,
}
either = pytest.mark.parametrize("asked", [ASKED, THINKING], ids=["grammar", "reasoning"])
CLOSING = [id for id, raw in enumerate(TOKENS) if raw[-1:] in (b'"', b"}", b"]")]
PROMPT = list(range(10, 30))  # that of the world


def logits(known, choice):
    """Logits of a model that knows nothing but likes to close what is open: they follow from all tokens before."""
    source = torch.Generator().manual_seed(zlib.crc32(pack_tokens([*known, choice])))
    found = torch.randn(1, len(TOKENS), generator=source) * 3
    found[0, CLOSING] += 3
    return found


def expected(choice=0, prompt=PROMPT, asked=ASKED):
    """The answer, by a position that replays all before each token."""
    return [*_expected(choice, tuple(prompt), tuple(asked.items()))]


@functools.cache
def _expected(choice, prompt, asked):
    output, params = [], SamplingParams(seed=1, **dict(asked))
    grammar = compilations.compile_grammar(COMPILER, params.grammar_kind, params.grammar)
    while len(output) < params.max_tokens:
        position = compilations.position(grammar)
        output.append(step(position, output, logits([*prompt, *output], choice), params).token)
        if output[-1] in params.stop_token_ids:
            break
    return output


class Drawing:
    """Workers with a vocabulary, whose tokens are sampled as a model's are."""

    def __init__(self, world, runner):
        self.world = world
        self._runner = runner
        self.compiling = threading.Event()
        self.compiling.set()

    def worker(self, name, **options):
        def make():
            assert self.compiling.wait(60)
            return COMPILER

        return self.world.worker(name, runner=self._runner(), grammars=Compilations(make), **options)

    def until(self, condition):
        give_up = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < give_up, "it hangs"
            self.world.run(1)
            time.sleep(0.001)  # for the thread that compiles

    def serve(self, worker, **params):
        self.world.generate(worker, turns=0, **params)
        self.until(worker.finished)


@pytest.fixture
def drawing(world, make_token_runner):
    class Runner(make_token_runner):
        """Draws from logits that follow from what the arena holds."""

        def _draw(self, known, draw):
            masks = constrain.masks(constrain.due([draw], [0]))
            line = logits(known, draw.choice)
            constrain.apply(line, masks)
            return sample(line, [draw], [0])[0]

    return Drawing(world, Runner)


def whole(tokens, asked=ASKED):
    assert tokens[-1] in (END, EOT)
    if asked is THINKING:
        assert 0 < tokens.index(MARKS.close) <= 30
        tokens = tokens[tokens.index(MARKS.close) + 1 :]
    jsonschema.validate(json.loads(text(tokens)), SCHEMA)
    return True


@pytest.mark.parametrize(("most", "finish"), [(120, "stop"), (5, "length")])
def test_an_answer_matches_and_ends_with_a_stop_or_is_cut_off(drawing, world, most, finish):
    worker = drawing.worker("u")
    drawing.serve(worker, **{**ASKED, "max_tokens": most})
    assert worker.tokens() == expected()[:most]
    assert finish == "length" or whole(worker.tokens())
    assert worker.items()[-1].finish == finish
    world.run(2)
    world.check_done()


@either
def test_a_prefilled_sequence_and_its_choices_go_on_elsewhere(drawing, world, asked):
    prefill, decode = drawing.worker("p"), drawing.worker("d")
    world.hand_off(prefill, decode, world.sequence(choices=(0, 1, 2), **asked))
    drawing.until(lambda: all(decode.finished(choice=choice) for choice in range(3)))
    answers = [decode.tokens(choice=choice) for choice in range(3)]
    assert answers == [expected(choice, asked=asked) for choice in range(3)]
    assert all(whole(answer, asked) for answer in answers)
    assert len({str(answer) for answer in answers}) == 3
    assert prefill.failures() == decode.failures() == []


@either
def test_a_running_sequence_migrates(drawing, world, asked):
    old, new = drawing.worker("a"), drawing.worker("b")
    world.generate(old, turns=0, **asked)
    drawing.until(lambda: len(old.tokens()) >= 8)
    sent = old.tokens()
    world.migrate(old, new, world.known(sent, **asked))
    drawing.until(lambda: new.finished(attempt=2))
    assert [*sent, *new.tokens(attempt=2)] == expected(asked=asked)


@either
def test_it_is_dispatched_again_with_what_was_sent(drawing, world, asked):
    """After the death of the worker that made these tokens."""
    truth = expected(asked=asked)
    worker = drawing.worker("w", max_waiting=100)
    known = range(1, len(truth) - 1, 9)
    worker.send(*[Generate(str(count), 2, world.known(truth[:count], **asked)) for count in known])
    drawing.until(lambda: all(worker.finished(id=str(count), attempt=2) for count in known))
    for count in known:
        assert truth[:count] + worker.tokens(str(count), 2) == truth


LONG = json.dumps({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 25})
BOUNDED = msgspec.json.encode(ReasoningBounds(MARKS, 50)).decode()


@pytest.mark.parametrize(("kind", "source"), [(JSON_SCHEMA, LONG), (REASONING, BOUNDED)], ids=["grammar", "reasoning"])
def test_sequences_that_are_preempted_begin_again(drawing, world, kind, source):
    prompts = [[10 + i] * 20 for i in range(4)]
    worker = drawing.worker("u", blocks=40)
    asked = {**ASKED, "max_tokens": 90, "grammar": source, "grammar_kind": kind}
    worker.send(*[Generate(str(i), 1, world.sequence(prompts[i], **asked)) for i in range(4)])
    drawing.until(lambda: all(worker.finished(id=str(i)) for i in range(4)))
    answers = [worker.tokens(str(i)) for i in range(4)]
    assert answers == [expected(prompt=prompt, asked=asked) for prompt in prompts]
    assert min(map(len, answers)) >= 50
    assert worker.status.load.preemptions > 0


def test_a_grammar_that_cannot_be_compiled_fails_for_good(drawing, world):
    worker = drawing.worker("u")
    for id, wrong in (("r", {"grammar": '{"type": "poem"}'}), ("s", {"grammar_kind": "haiku"})):
        world.generate(worker, id=id, turns=0, **ASKED | wrong)
    drawing.until(lambda: len(worker.failures()) == 2)
    first, second = sorted(worker.failures(), key=lambda failure: failure.id)
    assert (first.code, first.retry) == ("invalid", False)
    assert "Invalid type: poem" in first.message
    assert "'haiku' are not supported here" in second.message


def test_others_go_on_while_a_grammar_is_compiled(drawing, world):
    drawing.compiling.clear()
    worker = drawing.worker("u")
    world.generate(worker, turns=0, **ASKED)
    world.generate(worker, id="plain", max_tokens=3, turns=0)
    drawing.until(lambda: worker.finished(id="plain"))
    assert not worker.items()
    drawing.compiling.set()
    drawing.until(worker.finished)
    assert worker.tokens() == expected()


@pytest.mark.parametrize("end", ["cancelled", "expired", "its gateway leaves", "a part of its choices"])
def test_what_ends_while_its_grammar_is_compiled_never_begins(drawing, world, end):
    drawing.compiling.clear()
    worker = drawing.worker("u")
    deadline = 4.0 if end == "expired" else 1e6
    worker.send(Generate("r", 1, world.sequence(choices=(0, 1), deadline=deadline, **ASKED)), Pause("r", 1, True))
    world.run(2)
    if end == "cancelled":
        worker.send(Cancel("r", 0))
        world.run(1)
        assert not worker.core._handler.idle
        worker.send(Cancel("r", 1))
    elif end == "expired":
        world.run(4)
        assert worker.failures()[0].message == "its deadline passed while it waited for its grammar"
    elif end == "its gateway leaves":
        worker.send(left=(world.gateway,))
    else:
        worker.send(Cancel("r", 1, (1,)))
    world.run(2)
    drawing.compiling.set()
    if end != "a part of its choices":
        assert worker.core._handler.idle
        world.generate(worker, id="s", turns=0, **ASKED)
        drawing.until(lambda: worker.finished(id="s") or end == "its gateway leaves")
        assert not worker.items()
        return
    drawing.until(lambda: not worker.core._handler._pending)
    world.run(5)
    assert not worker.items(), "it is paused"
    worker.send(Pause("r", 1, False))
    drawing.until(lambda: worker.finished(choice=0))
    assert worker.tokens() == expected()
