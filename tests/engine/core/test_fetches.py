"""Cached blocks that a core fetches from another before it computes a prompt, and the ways in which that fails."""

import msgspec
import pytest

from legato_engine.transfer.session.events import BlocksAsked
from legato_protocol.wire import block_hash
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Cancel, Generate, KVSource, Prefill

layers = pytest.mark.parametrize("make_runner", ["plain", "windows"], indirect=True)
FIRST = list(range(100, 126))
TURN = [*FIRST, *range(200, 206)]


def fetch(source, tokens, seconds=20.0, room=7):
    """The source is said to have all blocks before the last of these tokens."""
    return KVSource(source.peer, room, (len(tokens) - 1) // 4, seconds)


def warm(world, worker, prompt=FIRST, **params):
    """The worker has computed the prompt and twelve tokens; returns all of them."""
    world.generate(worker, prompt, id="warm", turns=40, **params)
    return [*prompt, *worker.tokens("warm")]


def ask(world, worker, source, prompt=TURN, *, known=TURN, salt="", turns=40, **fetched):
    """Requests a sequence whose beginning `source` is said to have, and checks its tokens."""
    wanted = msgspec.structs.replace(world.sequence(prompt), cache_salt=salt, trace="00-1-2-01")
    worker.send(Generate("r", 1, wanted, fetch(source, known, **fetched)))
    world.run(turns)
    assert worker.tokens() == world.continuation(prompt, 12)
    return worker.status.totals


@layers
def test_a_chat_turn_computes_only_its_new_tokens(world):
    """The decode worker of the last turn has its prompt, and all of its answer but the last token."""
    prefill, decode = world.worker("p"), world.worker("d")
    known = warm(world, decode)
    turn, blocks = [*known, *range(200, 206)], (len(known) - 1) // 4
    prefill.send(Prefill("r", 1, 99, world.sequence(turn), decode.peer, fetch(decode, known)))
    world.run(40)
    totals = prefill.status.totals
    assert (totals.kv_fetches, totals.kv_fetched_blocks >= blocks) == (1, True)
    assert totals.prompt_tokens == len(turn) - 4 * blocks
    assert decode.status.totals.kv_lent_blocks == blocks
    world.workers.remove(decode)  # its own hand-off was not asked for
    prefill.send(Cancel("r", 1))
    world.run(3)


@layers
def test_only_lacking_blocks_are_fetched_and_the_span_says_how_many(world):
    here, there = world.worker("a"), world.worker("b")
    warm(world, here, FIRST[:13], max_tokens=1)
    warm(world, there, TURN)
    totals = ask(world, here, there)
    assert totals.failed_kv_fetches == {}
    assert (totals.kv_fetches, totals.prompt_tokens) == (1, 13 + len(TURN) - 28)
    (span,) = [phase for phase in here.phases if phase.name == "kv_fetch"]
    assert (span.details["source"], span.details["cached_blocks"]) == ("b", 3)
    world.check_done()


@layers
def test_the_leading_blocks_that_the_source_still_has_are_used(world):
    here, there = world.worker("a"), world.worker("b")
    warm(world, there, FIRST[:13], max_tokens=1)
    totals = ask(world, here, there)
    had = 0 if there.runner.layout.windows else 12  # the window of a longer prefix was granted
    assert totals.prompt_tokens == len(TURN) - had
    assert (totals.kv_fetches, totals.failed_kv_fetches) == ((1, {}) if had else (0, {"missing": 1}))
    world.check_done()


def lose(world, source):
    world.workers.remove(source)
    source.agent.close()


def stop(world, source):
    source.agent._link.stop()


FAILED = {  # the reason, the source's prompt, what happens to it, and the salt of the request
    "the source never had it": ("missing", FIRST[:3], None, ""),
    "another tenant has it": ("missing", TURN, None, "other"),
    "the source dies": ("lost", TURN, lose, ""),
    "the source is stopped": ("late", TURN, stop, ""),
}


@pytest.mark.parametrize("case", FAILED)
def test_a_failed_fetch_costs_at_most_its_budget_and_the_prompt_is_computed(world, case):
    reason, prompt, mischief, salt = FAILED[case]
    here, there = world.worker("a"), world.worker("b")
    warm(world, there, prompt, max_tokens=1)
    if mischief:
        mischief(world, there)
    totals = ask(world, here, there, salt=salt, seconds=8.0, turns=8 + len(TURN) // 8 + 15)
    assert (totals.failed_kv_fetches, totals.kv_fetches) == ({reason: 1}, 0)
    assert totals.prompt_tokens == len(TURN)
    there.agent._link.resume()
    world.run(10)
    assert (here.used, here.scheduler.idle) == (0, True)


ENDS = {
    "cancelled": lambda world, worker: worker.send(Cancel("r", 2)),
    "its gateway has disconnected": lambda world, worker: worker.send(left=(world.gateway,)),
    "the worker drains": lambda world, worker: worker.send(drain=True),
    "its deadline passes": lambda world, worker: world.run(7),
}


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_fetch_ends_with_its_request(world, end, connected):
    here, there = world.worker("a"), world.worker("b")
    warm(world, there, [*TURN, *range(20)], max_tokens=1)
    if connected:
        ask(world, here, there, FIRST[:13], known=FIRST[:13], room=6)
    stop(world, there)
    here.send(Generate("r", 2, world.sequence(TURN, deadline=8.0), fetch(there, TURN, seconds=100.0)))
    world.run(3)
    ENDS[end](world, here)
    world.run(3)
    there.agent._link.resume()
    world.run(5)
    awaited = ["its deadline passed while it waited for cached blocks of another worker"]
    assert [each.message for each in here.failures() if each.code == "deadline"] == awaited * (
        end == "its deadline passes"
    )
    totals = here.status.totals
    assert (totals.kv_fetches, totals.failed_kv_fetches, here.used, here.scheduler.idle) == (connected, {}, 0, True)


def crowd(world, blocks, growth=4, turns=4, mischief=None):
    """A sequence runs that will need all of the worker's blocks, as another one begins with a fetch."""
    here, there = world.worker("a", blocks=blocks, growth_tokens=growth), world.worker("b")
    warm(world, there, TURN, max_tokens=1)
    world.generate(here, list(range(300, 320)), id="long", max_tokens=20, turns=turns)
    if mischief:
        mischief(world, there)
    here.send(Generate("r", 1, world.sequence(TURN), fetch(there, TURN, seconds=200.0)))
    world.run(20)
    there.agent._link.resume()
    world.run(60)
    assert here.tokens("long") == world.continuation(list(range(300, 320)), 20)
    assert here.tokens() == world.continuation(TURN, 12)
    world.check_done()
    return here.status.totals.failed_kv_fetches


@pytest.mark.parametrize(("blocks", "mischief"), [(12, None), (15, stop)], ids=["never had room", "needed later"])
def test_running_sequences_come_before_fetches(world, blocks, mischief):
    assert crowd(world, blocks, mischief=mischief) == {"no_room": 1}


@pytest.mark.parametrize("turns", range(4, 8))
def test_blocks_of_a_fetch_that_are_needed_before_they_are_granted_end_it(make_world, turns):
    world = make_world()
    assert crowd(world, 13, growth=0, turns=turns) in ({"no_room": 1}, {})
    world.close()


def test_a_source_whose_peer_asks_again_after_it_revoked_its_grant_lends_once_more(world):
    """Its first loan still waits for the step that restores the blocks."""
    source = world.worker("b")
    warm(world, source, TURN)
    lenders, loans = source.core._handoffs.lenders, source.scheduler.loans
    asked = BlocksAsked(
        7, 1, 0, tuple(block_hash.chain(pack_tokens(TURN), 4, block_hash.root(source.runner.kv_revision)))
    )
    lenders.on_asked(asked)
    (first,) = loans
    first.moving += 1
    lenders.on_asked(asked)
    assert (len(loans), first in loans) == (1, False)
    world.run(1)
    assert (lenders._waiting, len(loans), source.used, lenders.lent_blocks) == ([], 0, 0, 0)


def test_a_prompt_that_is_scored_fetches_nothing(world):
    """Logits are not cached."""
    here, there = world.worker("a"), world.worker("b")
    warm(world, there, TURN)
    here.send(Generate("r", 1, world.sequence(TURN, prompt_logprobs=0), fetch(there, TURN)))
    world.run(20)
    assert (here.status.totals.prompt_tokens, there.status.totals.kv_lent_blocks) == (len(TURN), 0)
