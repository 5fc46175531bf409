"""Requests for an adapter: which workers are sent them, and which adapter they are computed with."""

from relay_script import Scripted

from legato_gateway.routing.prefix_hashes import Hashing
from legato_protocol.stream import Decode, Failed, Generate, Prefill


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
    run.relay.workers.received(sub.place.decode, Failed(sub.id, 1, "internal", "scripted", "decode", True))
    run.until(lambda: len(run.told(Generate)) > 1)


def test_a_request_for_an_adapter_is_sent_with_its_digest_and_hashed_apart(lab):
    run = Scripted(lab, "p", "d")
    _adapt(run, p0="one", d1="one")
    adapted = run.start(adapter="sql")
    ((_, prefill),), ((_, decode),) = run.told(Prefill), run.told(Decode)
    assert prefill.sequence.adapter == decode.sequence.adapter == "one"
    base = run.start(model="the model itself")
    assert [frame.sequence.adapter for _, frame in run.told(Prefill)] == ["one", ""]
    snapshot = run.fleet.snapshot()
    run.relay._dispatcher.matches(run.sub(adapted), snapshot)
    prompt = adapted.prompt
    assert adapted.hashes.of(prompt, Hashing("r", 16, "one")) != base.hashes.of(prompt, Hashing("r", 16))


def test_the_kv_of_the_base_is_no_prefix_of_an_adapters(lab):
    run = Scripted(lab, "u")
    _adapt(run, u0="one")
    run.hold("u0")
    assert run.start(adapter="sql").route.cached_tokens == {"u0": 0}
    assert run.start().route.cached_tokens == {"u0": 96}


def test_what_goes_on_keeps_its_adapter_however_its_name_is_taken_meanwhile(lab):
    run, sub = _begun(lab, u0="old", u1="", u2="")
    assert run.relay._dispatcher.need(sub).digest == "old"
    _adapt(run, u1="new")
    _fail(run, sub)
    assert [name for name, _ in run.told(Generate)] == ["u0", "u0"], "better where it failed than with another adapter"
    _adapt(run, u2="old")
    assert [frame.sequence.adapter for _, frame in run.told(Generate)] == ["old", "old"]


def test_what_goes_on_may_go_where_its_adapter_lost_its_name(lab):
    """It was removed or replaced while requests ran: they end with it, and new ones begin with what has the name."""
    run, sub = _begun(lab, u0="old", u1="old")
    _replace(run)
    _fail(run, sub)
    (_, frame) = run.told(Generate)[-1]
    assert frame.sequence.adapter == "old"
    run.start(adapter="sql")
    assert run.told(Generate)[-1][1].sequence.adapter == "new"


def test_what_goes_on_is_matched_with_prefixes_of_its_own_adapter(lab):
    """Whichever has its name by now."""
    run, sub = _begun(lab, u0="old", u1="old", u2="old")
    _replace(run)
    first, second = (worker.name for worker in run.others(run.workers[sub.place.decode]))
    run.hold(first, "old")
    run.hold(second, "new")
    assert run.relay._dispatcher.matches(sub, run.fleet.snapshot()).get(first) == 6
    assert not run.relay._dispatcher.matches(sub, run.fleet.snapshot()).get(second)


def test_a_worker_with_other_adapters_is_the_same_worker_otherwise(lab):
    run, _ = _begun(lab, u0="one")
    run.hold("u0")
    before, openings = run.fleet.worker("u0").load, run.fleet.openings
    assert before is not None
    _adapt(run, u0="two")
    assert run.fleet.worker("u0").load == before
    assert run.fleet.openings > openings, "who waits for the new one is tried"
    assert run.start().route.cached_tokens == {"u0": 96}, "its prefix cache is known still"
    assert len(run.told(Generate)) == 2, "nothing is dispatched again"


def test_it_migrates_to_a_worker_with_the_same_adapter(lab):
    run, sub = _begun(lab, u0="old", u1="", u2="")
    assert run.relay._dispatcher.migrate(sub) is None
    _adapt(run, u1="new")
    assert run.relay._dispatcher.migrate(sub) is None
    _adapt(run, u2="old")
    assert run.relay._dispatcher.migrate(sub).decode == "u2"
    ((name, frame),) = run.told(Decode)
    assert (name, frame.sequence.adapter) == ("u2", "old")
