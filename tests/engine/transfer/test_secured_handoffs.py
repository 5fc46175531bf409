"""Hand-offs whose control messages go through TLS: which workers use it, whom they refuse, and what can be read."""

import pytest
from handoff_pair import TOKENS, Pair, Stranger

from legato_engine.transfer.connections.certificates import HandoffCertificates
from legato_engine.transfer.connections.channels import Channels
from legato_engine.transfer.session.events import Aborted, Arrived, Committed, Granted, Released
from legato_protocol.wire import handoff

NAME = "s-workers.demo.svc"


@pytest.fixture
def followed(tmp_path, files):
    folder = tmp_path / "tls"
    folder.mkdir()
    files.install(folder)
    return HandoffCertificates(folder, NAME)


def plain(_):
    return {"channels": Channels()}


def permissive(followed):
    return {"channels": Channels(followed)}


def strict(followed):
    return {"channels": Channels(followed, strict=True)}


def recorded(pair):
    """All that the two links send from here on."""
    sent = []
    for side in (pair.sender, pair.receiver):
        send = side.link.send
        side.link.send = lambda number, data, send=send: (sent.append(data), send(number, data))[1]
    return sent


def hand_off(pair, attempt=1):
    """From the request to the commit, whatever earlier attempts came to."""
    pair.sender.seen.clear()
    pair.receiver.seen.clear()
    pair.expect(attempt)
    pair.grant(attempt=attempt)
    pair.wait(lambda: pair.sender.events(Granted))
    pair.send()
    pair.wait(lambda: pair.sender.events(Committed))
    assert [event.attempt for event in pair.receiver.events(Arrived)] == [attempt]
    assert bool((pair.receiver.arena[:4] == 7).all())


def refused(pair):
    """Begins a hand-off that is refused, and returns its end."""
    pair.begin()
    pair.wait(lambda: pair.receiver.events(Released))
    (aborted,) = pair.receiver.events(Aborted)
    assert not pair.sender.events(Granted)
    return aborted


def secrets(pair):
    return [pair.sender.link.rkey, pair.receiver.link.rkey, b"epoch-sender", b"epoch-receiver", TOKENS]


def readable(sent, secrets):
    return {secret for secret in secrets for data in sent if secret in data}


TOGETHER = [
    *((plain, plain, False), (plain, permissive, False), (permissive, plain, False)),
    *((permissive, permissive, True), (permissive, strict, True), (strict, permissive, True), (strict, strict, True)),
]


@pytest.mark.parametrize(("sender", "receiver", "secured"), TOGETHER)
def test_tls_is_used_where_both_have_it_and_then_nothing_can_be_read(followed, sender, receiver, secured):
    pair = Pair(sender(followed), receiver(followed))
    sent = recorded(pair)
    hand_off(pair)
    everything = set(secrets(pair))
    assert all(everything), "each is something"
    assert readable(sent, everything) == (set() if secured else everything)
    for side in (pair.sender, pair.receiver):
        counts = side.agent.counts()
        assert (counts.tls_peers, counts.plain_peers) == ((1, 0) if secured else (0, 1))
        assert (counts.refused_peers, counts.bad_messages) == (0, 0)


@pytest.mark.parametrize("strict_side", ["sender", "receiver"])
def test_strict_has_no_hand_off_with_a_worker_without_tls(followed, strict_side, caplog):
    modes = {"sender": plain(None), "receiver": plain(None), strict_side: strict(followed)}
    pair = Pair(**modes)
    sent = recorded(pair)
    assert refused(pair).wanted
    assert not readable(sent, [pair.sender.link.rkey]), "who is asked says nothing"
    refusing = pair.sender.agent.counts()
    assert refusing.refused_peers == 1
    if strict_side == "sender":
        assert (refusing.refused_plain, refusing.failed_tls) == (1, 0)
        assert "refused a peer: it speaks no TLS, and internal TLS is Strict here" in caplog.messages
    else:
        assert (refusing.refused_plain, refusing.failed_tls) == (0, 1)
        assert not readable(sent, secrets(pair)), "and neither does who asks"
        assert "refused a peer: it speaks TLS, and this worker has no internal TLS" in caplog.messages


@pytest.mark.parametrize("expected_first", [True, False])
def test_who_knows_the_token_alone_cannot_take_a_hand_off_between_workers_with_tls(followed, expected_first):
    """It says that it is the receiver, and grants blocks of its own; Permissive lets it connect, and no more."""
    pair = Pair(permissive(followed), permissive(followed))
    if expected_first:
        pair.expect()
    thief = Stranger(pair, to=pair.sender, name="receiver", at="thief")
    assert pair.sender.agent.counts().plain_peers == 1
    thief.say(handoff.Grant("epoch-receiver", 1, 1, (0, 1, 2, 3), 0, 10.0, 1))
    if not expected_first:
        pair.expect()
        pair.run()
    assert not pair.sender.events(Granted)
    pair.grant()
    assert pair.arrives()
    assert not any(isinstance(each, handoff.Final) for each in thief.heard)


def test_damage_on_the_way_ends_the_connection_and_the_hand_off_can_be_tried_again(followed):
    pair = Pair(strict(followed), strict(followed))
    pair.begin()
    pair.wait(lambda: pair.sender.events(Granted))
    send = pair.sender.link.send
    pair.sender.link.send = lambda number, data: send(number, data[:-1] + bytes([data[-1] ^ 1]))
    pair.send()
    pair.wait(lambda: pair.receiver.events(Released) and pair.sender.events(Aborted))
    (aborted,) = pair.receiver.events(Aborted)
    assert aborted.wanted
    assert "TLS with it failed" in aborted.reason
    assert not pair.receiver.events(Arrived)
    pair.sender.link.send = send
    hand_off(pair, attempt=2)
