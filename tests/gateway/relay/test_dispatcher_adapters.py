"""Requests for an adapter: which workers are sent them, and which adapter they are computed with."""

from relay_script import Scripted

from legato_gateway.routing.prefix_hashes import Hashing
from legato_protocol.stream import Decode, Generate, Prefill


def _adapt(run, **digests):
    """Workers of these names have the adapter sql with this digest."""
    for name, digest in digests.items():
        run.greet(name, adapters={"sql": digest} if digest else {})


def _replace(run):
    """All workers have another adapter with this name, and the one before without."""
    for name in run.workers:
        run.greet(name, adapters={"sql": "new"}, former_adapters=("old",))


def _begun(lab, **digests):
    """Workers of these names, and the sub-request of a generation with the adapter that has seven tokens."""
    run = Scripted(lab, *"u" * len(digests))
    _adapt(run, **digests)
    generation = run.start(adapter="sql")
    run.until(lambda: generation.completion_tokens == 7)
    return run, run.sub(generation)


def _fail(run, sub):
    """And it goes on."""
    run.fail(sub)
    run.until(lambda: len(run.frames(Generate)) > 1)


def test_a_request_for_an_adapter_is_sent_with_its_digest_and_hashed_separately(lab):
    run = Scripted(lab, "p", "d")
    _adapt(run, p0="one", d1="one")
    adapted = run.start(adapter="sql")
    base = run.start(model="the model itself")
    assert [frame.sequence.adapter for kind in (Prefill, Decode) for _, frame in run.frames(kind)] == ["one", ""] * 2
    run.relay._dispatcher.matches(run.sub(adapted), run.fleet.snapshot())
    prompt = adapted.prompt
    assert adapted.hashes.of(prompt, Hashing("r", 16, "one")) != base.hashes.of(prompt, Hashing("r", 16))


def test_the_kv_of_the_base_is_not_a_prefix_of_an_adapters(lab):
    run = Scripted(lab, "u")
    _adapt(run, u0="one")
    run.hold("u0")
    assert [run.start(adapter=name).route.cached_tokens for name in ("sql", "")] == [{"u0": 0}, {"u0": 96}]


def test_what_goes_on_keeps_its_adapter_however_its_name_is_taken_meanwhile(lab):
    run, sub = _begun(lab, u0="old", u1="", u2="")
    assert run.relay._dispatcher.need(sub).digest == "old"
    _adapt(run, u1="new")
    _fail(run, sub)
    assert [name for name, _ in run.frames(Generate)] == ["u0", "u0"], (
        "better where it failed than with another adapter"
    )
    _adapt(run, u2="old")
    assert [frame.sequence.adapter for _, frame in run.frames(Generate)] == ["old", "old"]


def test_what_goes_on_may_go_where_its_adapter_lost_its_name(lab):
    """It was removed or replaced while requests ran: they end with it, and new ones begin with what has the name."""
    run, sub = _begun(lab, u0="old", u1="old")
    _replace(run)
    _fail(run, sub)
    run.start(adapter="sql")
    assert [frame.sequence.adapter for _, frame in run.frames(Generate)[-2:]] == ["old", "new"]


def test_what_goes_on_is_matched_with_prefixes_of_its_own_adapter(lab):
    """Whichever has its name by now."""
    run, sub = _begun(lab, u0="old", u1="old", u2="old")
    _replace(run)
    first, second = (worker.name for worker in run.others(run.workers[sub.place.decode]))
    run.hold(first, "old")
    run.hold(second, "new")
    matches = run.relay._dispatcher.matches(sub, run.fleet.snapshot())
    assert (matches.get(first), matches.get(second, 0)) == (6, 0)


def test_a_worker_with_other_adapters_is_the_same_worker_otherwise(lab):
    run, _ = _begun(lab, u0="one")
    run.hold("u0")
    before, openings = run.fleet.worker("u0").load, run.fleet.openings
    assert before is not None
    _adapt(run, u0="two")
    assert run.fleet.worker("u0").load == before
    assert run.fleet.openings > openings, "who waits for the new one is tried"
    assert run.start().route.cached_tokens == {"u0": 96}, "its prefix cache is known still"
    assert len(run.frames(Generate)) == 2, "nothing is dispatched again"


def test_it_migrates_to_a_worker_with_the_same_adapter(lab):
    run, sub = _begun(lab, u0="old", u1="", u2="")
    assert run.relay._dispatcher.migrate(sub) is None
    _adapt(run, u1="new")
    assert run.relay._dispatcher.migrate(sub) is None
    _adapt(run, u2="old")
    assert run.relay._dispatcher.migrate(sub).decode == "u2"
    assert [(name, frame.sequence.adapter) for name, frame in run.frames(Decode)] == [("u2", "old")]
