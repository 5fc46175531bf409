"""Trust in the other end of a connection, and the time for which a silent one is kept."""

import msgspec
import pytest

from legato_engine.transfer.connections.peers import Peers
from legato_engine.transfer.connections.seals import prove, seal
from legato_engine.transfer.fakes.virtual_time import VirtualTime
from legato_protocol.wire import handoff
from legato_protocol.wire.stream import Peer

PATIENCE = 10.0
OTHER = Peer("other", "e2", b"there")
RENEW = handoff.Renew("e2", 5, 1)


class RecordedLink:
    """In place of a link: the calls that it got."""

    def __init__(self):
        self.connected, self.attached, self.sent, self.fenced = [], [], [], []

    def connect(self, address):
        self.connected.append(address)
        return 100 + len(self.connected)

    def attach(self, connection, rkey):
        self.attached.append((connection, rkey))

    def send(self, connection, data):
        self.sent.append((connection, data))

    def fence(self, connection):
        self.fenced.append(connection)


class Worker:
    def __init__(self, name="own", epoch="e1", token="secret"):
        self.link, self.time = RecordedLink(), VirtualTime()
        proof = prove(token, name, epoch)
        self.hello = handoff.PeerHello(name, epoch, "kv", "tiny", name.encode(), len(name) * 4096, b"key", proof)
        self.peers = Peers(self.link, self.hello, token, PATIENCE, self.time.clock)

    def sealed(self, message):
        return seal(msgspec.msgpack.encode(message), self.peers._tokens[0])


@pytest.fixture
def own():
    return Worker()


@pytest.fixture
def other():
    return Worker("other", "e2")


def greeted(own, other):
    """The connection that `own` has to `other`, both trusted."""
    number = own.peers.reach(OTHER)
    own.peers.on_connected(number, accepted=False)
    assert own.peers.receive(number, other.sealed(other.hello)) == other.hello
    return number


def test_a_worker_is_connected_to_once(own, other):
    number = greeted(own, other)
    own.peers.tick(1e9)
    assert (list(own.peers.timers()), own.link.fenced) == ([], []), "a trusted one has no time to run out"
    assert own.peers.reach(OTHER) == number
    assert own.link.connected == [b"there"]
    assert own.peers.reach(Peer("other", "e3", b"there")) != number
    assert own.peers.reach(Peer("another", "e2", b"there")) != number


def test_a_hello_makes_a_connection_trusted_and_its_memory_writable(own, other):
    number = own.peers.reach(OTHER)
    assert not own.peers.is_trusted(number)
    own.peers.on_connected(number, accepted=False)
    assert own.link.sent == [(number, own.sealed(own.hello))]
    own.peers.receive(number, other.sealed(other.hello))
    assert own.peers.is_trusted(number)
    assert own.link.attached == [(number, b"key")]
    known = (own.peers.identity(number), own.peers.epoch(number), own.peers.arena(number))
    assert known == (("other", "e2"), "e2", other.hello.arena)
    assert len(own.link.sent) == 1, "who connected has said hello already"


def test_who_was_connected_to_answers_the_hello(own, other):
    own.peers.on_connected(7, accepted=True)
    own.peers.on_connected(999, accepted=False)  # nobody asked for it
    assert (own.link.sent, own.peers.is_trusted(999)) == ([], False)
    own.peers.receive(7, other.sealed(other.hello))
    assert own.link.sent == [(7, own.sealed(own.hello))]
    assert own.peers.is_trusted(7)
    assert own.peers.identity(7) == ("other", "e2")
    assert own.peers.reach(OTHER) == 7, "and is reached over the same connection"


WRONG = {
    "its proof of the token is wrong": {"proof": b"x" * 32},
    "its version is 2, ours is 1": {"version": 2},
    "its kv_revision is 'v', ours is 'kv'": {"kv_revision": "v"},
    "its layout is 'wide', ours is 'tiny'": {"layout": "wide"},
}


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize(("reason", "change"), WRONG.items(), ids=WRONG)
def test_a_peer_that_is_not_to_be_trusted_is_closed(own, other, reason, change, accepted):
    number = 7 if accepted else own.peers.reach(OTHER)
    own.peers.on_connected(number, accepted)
    hello = msgspec.structs.replace(other.hello, **change)
    for each in (hello, other.hello):  # nothing is read from it any more
        assert own.peers.receive(number, other.sealed(each)) is None
        assert not own.peers.is_trusted(number)
        assert (own.peers.refusal(number), own.peers.refused) == (reason, 1)
        assert (own.link.fenced, own.link.attached) == ([number], [])


@pytest.mark.parametrize(("worker", "epoch"), [("another", "e2"), ("other", "e3")])
def test_another_one_than_was_called_is_refused_but_anyone_may_call(own, worker, epoch):
    there = Worker(worker, epoch)
    number = own.peers.reach(OTHER)
    own.peers.on_connected(number, accepted=False)
    assert own.peers.receive(number, there.sealed(there.hello)) is None
    assert own.peers.refusal(number) == f"{worker} of epoch {epoch} answered for other of e2"
    own.peers.on_connected(7, accepted=True)
    assert own.peers.receive(7, there.sealed(there.hello)) == there.hello


def test_a_peer_of_the_next_version_that_still_speaks_this_one_is_trusted_and_its_new_messages_are_skipped(own, other):
    own.peers.on_connected(7, accepted=True)
    hello = msgspec.structs.replace(other.hello, version=handoff.VERSION + 1, oldest=handoff.VERSION)
    own.peers.receive(7, other.sealed(hello))
    assert own.peers.is_trusted(7)
    assert own.peers.receive(7, seal(msgspec.msgpack.encode(["later", "e1", 1, 1]), other.peers._tokens[0])) is None
    assert own.peers.bad_messages == 1
    assert own.peers.receive(7, other.sealed(RENEW)) == RENEW


def test_a_message_with_a_wrong_seal_is_counted_and_ends_a_connection_that_is_not_trusted(own, other):
    number = greeted(own, other)
    good = other.sealed(RENEW)
    for data in (good[:-1] + bytes([good[-1] ^ 1]), bytes([good[0] ^ 1]) + good[1:], good[:5], b""):
        assert own.peers.receive(number, data) is None
    assert own.peers.bad_messages == 4
    assert own.peers.receive(number, good) == RENEW
    assert own.link.fenced == []
    own.peers.on_connected(7, accepted=True)
    assert own.peers.receive(7, good[:-1]) is None
    assert own.link.fenced == [7]
    assert "seal" in own.peers.refusal(7)


def test_a_hello_comes_first_and_once(own, other):
    own.peers.on_connected(7, accepted=True)
    assert own.peers.receive(7, other.sealed(RENEW)) is None
    assert own.link.fenced == [7]
    number = greeted(own, other)
    assert own.peers.receive(number, other.sealed(other.hello)) is None
    assert own.peers.is_trusted(number)
    assert own.peers.bad_messages == 2


def test_nothing_is_read_from_a_connection_that_is_gone(own, other):
    number = greeted(own, other)
    own.peers.forget(number, "gone")
    assert own.peers.receive(number, other.sealed(RENEW)) is None
    assert (own.peers.is_trusted(number), own.peers.refusal(number)) == (False, "")
    own.peers.forget(number, "gone")


def test_connections_that_fail_before_a_peer_answers_are_counted_until_one_does(own, other):
    """Connections that peers open, or that end later, say nothing about who can be reached from here."""
    failed = []
    for answers in (False, False, True, False):
        number = greeted(own, other) if answers else own.peers.reach(OTHER)
        own.peers.on_connected(7, accepted=True)
        for each in (number, 7):
            own.peers.forget(each, "refused")
        failed.append(own.peers.failed_in_a_row)
    greeted(own, other)
    own.peers.forget(own.peers.reach(Peer("another", "e3", b"nowhere")), "refused")
    assert [*failed, own.peers.failed_in_a_row] == [1, 2, 0, 1, 0]


def test_messages_go_to_trusted_peers_only(own, other):
    number = own.peers.reach(OTHER)
    own.peers.send(number, RENEW)
    own.peers.send(999, RENEW)
    assert own.link.sent == []
    own.peers.on_connected(number, accepted=False)
    own.peers.receive(number, other.sealed(other.hello))
    own.peers.send(number, RENEW)
    assert own.link.sent[-1] == (number, own.sealed(RENEW))


@pytest.mark.parametrize("accepted", [False, True])
def test_a_silent_connection_is_closed_when_its_time_is_up(own, accepted):
    own.time.run(2.0)
    number = 7 if accepted else own.peers.reach(OTHER)
    own.peers.on_connected(number, accepted)
    assert list(own.peers.timers()) == [2.0 + PATIENCE]
    own.peers.tick(2.0 + PATIENCE - 0.001)
    assert own.link.fenced == []
    own.peers.tick(2.0 + PATIENCE)
    own.peers.tick(2.0 + PATIENCE)
    assert own.link.fenced == [number]
    assert own.peers.refused == 1
    assert own.peers.refusal(number) == "it did not identify itself within 10 seconds"
    assert list(own.peers.timers()) == []


def test_a_fence_is_asked_for_once_and_another_connection_takes_what_follows(own, other):
    number = greeted(own, other)
    assert own.peers.fence(number)
    assert not own.peers.fence(number)
    assert not own.peers.fence(999)
    assert own.link.fenced == [number]
    assert own.peers.reach(OTHER) != number


def test_the_longest_silent_stranger_makes_room(own, other):
    own.peers.reach(OTHER)  # called from here: no stranger
    own.peers.on_connected(1, accepted=True)
    own.peers.receive(1, other.sealed(other.hello))
    for number in range(2, 66):
        own.peers.on_connected(number, accepted=True)
    assert own.link.fenced == []
    own.peers.on_connected(66, accepted=True)
    assert own.link.fenced == [2]
    own.peers.on_connected(67, accepted=True)
    assert own.link.fenced == [2, 3]
    assert own.peers.refused == 2


def shaken(one, other):
    """Connects one to the other, by what each really sends; whether both trust it."""
    there, here = 7, one.peers.reach(Peer(other.hello.worker, other.hello.epoch, b"there"))
    one.peers.on_connected(here, accepted=False)
    other.peers.on_connected(there, accepted=True)
    other.peers.receive(there, one.link.sent[-1][1])
    if other.link.sent:
        one.peers.receive(here, other.link.sent[-1][1])
    return one.peers.is_trusted(here) and other.peers.is_trusted(there)


@pytest.mark.parametrize(
    ("shows", "takes", "understood"),
    [(["a"], ["b", "a"], True), (["b", "a"], ["a", "b"], True), (["a", "b"], ["b", "a"], True), (["a"], ["b"], False)],
)
def test_workers_with_different_tokens_understand_each_other_where_each_takes_the_others(shows, takes, understood):
    one, other = Worker(), Worker("other", "e2")
    one.peers.trust(shows)
    other.peers.trust(takes)
    assert shaken(one, other) is understood
    assert (other.link.fenced, other.peers.refused) == (([], 0) if understood else ([7], 1))


def test_a_connection_keeps_its_token_when_others_take_its_place():
    one, other = Worker(), Worker("other", "e2")
    assert shaken(one, other)
    one.peers.trust(["b"])
    other.peers.trust(["b"])
    one.peers.send(101, RENEW)
    assert other.peers.receive(7, one.link.sent[-1][1]) == RENEW
