"""TLS between two workers as a state machine: what is let through, and what ends the connection, told in words."""

import contextlib
import random
import ssl
from ssl import PROTOCOL_TLS_CLIENT, SSLContext, TLSVersion
from types import SimpleNamespace

import certificates
import pytest

from legato_engine.transfer.connections.certificates import HandoffCertificates, contexts
from legato_engine.transfer.connections.tls_channel import ALPN, MARK, ChannelError, TLSChannel, is_for
from legato_protocol.process.followed_files import InvalidFile
from legato_protocol.security.tls_files import Contexts

NAME = "s-workers.demo.svc"
FOR_NAME = f"subjectAltName=DNS:{NAME}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    good = certificates.make(folder / "good", names=FOR_NAME)
    more = {
        "other_name": {"names": "subjectAltName=DNS:t-workers.demo.svc", "of": good},
        "server_only": {"names": f"{FOR_NAME}\nextendedKeyUsage=serverAuth", "of": good},
        "expired": {"names": FOR_NAME, "of": good, "days": -1},
        "foreign": {"names": FOR_NAME},
    }
    made = {name: certificates.make(folder / name, **asked) for name, asked in more.items()}
    return SimpleNamespace(good=good, **made)


def read(files):
    return contexts(files.certificate, files.key, files.authority.read_text())


def ends(client, server):
    return TLSChannel(client.client, NAME, connects=True), TLSChannel(server.server, NAME, connects=False)


def shake(one, other):
    """As a link does, whose messages are never empty. Raises what an end raises."""
    while data := one.outgoing():
        other.receive(data)
        if data := other.outgoing():
            one.receive(data)


def refuses(reason=None):
    return pytest.raises(ChannelError, match=reason)


@pytest.fixture
def fresh(made):
    return ends(read(made.good), read(made.good))


@pytest.fixture
def connected(fresh):
    shake(*fresh)
    assert [end.ready for end in fresh] == [True, True]
    return fresh


@pytest.mark.parametrize("size", [0, 1, 16_380, 16_384, 1 << 20, 5_000_001])
def test_messages_of_any_size_arrive_both_ways(connected, size):
    for source, target in (connected, connected[::-1]):
        messages = [random.Random(size).randbytes(size), b"another"]
        assert [target.receive(data) for data in [*map(source.wrap, messages)]] == messages


def test_nothing_of_a_message_or_certificate_is_readable_on_the_way(fresh):
    one, other = fresh
    heard = [one.outgoing()]
    other.receive(heard[0])
    heard += [other.outgoing()]
    one.receive(heard[1])
    heard += [one.outgoing(), one.wrap(b"a secret rkey")]
    other.receive(heard[2])
    assert other.receive(heard[3]) == b"a secret rkey"
    assert not any(b"a secret" in each for each in heard)
    assert not any(b"s-workers" in each for each in heard[1:]), "only the first names who is looked for"


@pytest.mark.parametrize("step", [1, 7, 500])
def test_a_handshake_in_pieces_is_one(fresh, step):
    one, other = fresh
    while data := one.outgoing():
        first = len(MARK) if data.startswith(MARK) else 0
        for start in range(0, len(data), step):
            piece = data[:first] * (start == 0) + data[first:][start : start + step]
            if piece:
                assert other.receive(piece) is None
        back = other.outgoing()
        for start in range(0, len(back), step):
            one.receive(back[start : start + step])
    assert (one.ready, other.ready) == (True, True)
    assert other.receive(one.wrap(b"hello")) == b"hello"


def first_record(data):
    return data[: 5 + int.from_bytes(data[3:5], "big")]


@pytest.mark.parametrize(
    ("size", "cut"),
    [
        *(
            (size, lambda data, share=share: data[: int(share * len(data))])
            for size in (40, 100_000)
            for share in (0.0, 0.3, 0.9, 0.9999)
        ),
        (100_000, first_record),
    ],
)
def test_a_message_that_is_cut_ends_the_connection(connected, size, cut):
    one, other = connected
    with refuses("its message is cut"):
        other.receive(cut(one.wrap(bytes(size))))


@pytest.mark.parametrize("what", ["two in one", "damaged", "repeated", "out of order", "foreign", "alert"])
def test_what_is_not_the_peers_next_message_ends_the_connection(connected, what):
    one, other = connected
    first, second = one.wrap(b"first"), one.wrap(b"second")
    wrong = {
        "two in one": first + second,
        "damaged": first[:-3] + bytes([first[-3] ^ 1]) + first[-2:],
        "repeated": first,
        "out of order": second,
        "foreign": random.Random(1).randbytes(50),
        "alert": b"\x15\x03\x03\x00\x02\x02\x28",
    }
    if what == "repeated":
        assert other.receive(first) == b"first"
    with refuses("or more than one" if what == "two in one" else "TLS with it failed"):
        other.receive(wrong[what])


def babble(channel, draw, start):
    for number in range(100):
        channel.receive(start * (number == 0) + draw.randbytes(draw.randrange(1, 400)))


@pytest.mark.parametrize("seed", range(20))
def test_garbage_in_place_of_a_handshake_raises_nothing_else(made, seed):
    one, other = ends(read(made.good), read(made.good))
    for channel, start in ((other, MARK), (one, b"")):
        with refuses():
            babble(channel, random.Random(seed), start)
        assert not channel.ready


def test_a_message_without_tls_is_named_as_such(fresh):
    with refuses("it does not begin with TLS"):
        fresh[1].receive(b"a digest, and a hello")


def contexts_of(made, which):
    """Contexts of one that knows the service's authority, which has not signed a foreign certificate."""
    files = getattr(made, which, made.good)
    found = contexts(files.certificate, files.key, made.good.authority.read_text())
    if which == "without":
        bare = SSLContext(PROTOCOL_TLS_CLIENT)
        bare.load_verify_locations(made.good.authority)
        bare.set_alpn_protocols([ALPN])
        found = Contexts(found.server, bare)
    elif which == "older TLS":
        found.client.minimum_version = found.client.maximum_version = TLSVersion.TLSv1_2
    elif which == "web":
        found.client.set_alpn_protocols(["http/1.1"])
    return found


NOT_ACCEPTED = "its certificate is not accepted: .*"
FOREIGN = f"{NOT_ACCEPTED}(unable to get local issuer certificate|self-signed|self signed)"
OTHER_NAME = f"{NOT_ACCEPTED}(not valid for|it is not for s-workers.demo.svc)"


@pytest.mark.parametrize(
    ("which", "connects", "reason"),
    [
        *(("other_name", connects, OTHER_NAME) for connects in (True, False)),
        *(("expired", connects, f"{NOT_ACCEPTED}certificate has expired") for connects in (True, False)),
        *(("foreign", connects, FOREIGN) for connects in (True, False)),
        ("server_only", True, f"{NOT_ACCEPTED}purpose"),
        ("without", True, "did not return a certificate"),
        ("older TLS", True, "TLS with it failed: .*protocol"),
        ("web", True, "its TLS is not for hand-offs"),
    ],
)
def test_one_that_is_not_of_the_service_is_refused_by_either_end_which_says_why(made, which, connects, reason):
    bad, good = contexts_of(made, which), read(made.good)
    one, other = ends(bad, good) if connects else ends(good, bad)
    judge, refused = (other, one) if connects else (one, other)
    with refuses(reason):
        shake(one, other)
    if which != "web":  # which has shown a good certificate
        assert not judge.ready
    if which == "foreign" and connects:
        with refuses("TLS with it failed: .*alert unknown ca"):
            refused.receive(judge.outgoing())


@pytest.mark.parametrize("said", [b"", b"the last one"])
def test_a_peer_that_ends_tls_is_refused_even_behind_a_message(connected, said):
    one, other = connected
    data = one.wrap(said) if said else b""
    with contextlib.suppress(ssl.SSLWantReadError):
        one._tls.unwrap()
    with refuses("it has ended TLS"):
        other.receive(data + one.outgoing())


MATCHING = [[NAME], ["x", NAME.upper()], ["*.demo.svc"]]
OTHERS = [[], ["*"], ["*.svc"], ["s-workers.demo"], ["*-workers.demo.svc"], ["s-workers.demo.svc.evil"]]


def test_names_of_certificates():
    assert [names for names in MATCHING + OTHERS if is_for(NAME, names)] == MATCHING


def test_new_connections_show_the_files_of_now(made, tmp_path):
    made.good.install(tmp_path)
    followed = HandoffCertificates(tmp_path, NAME)
    first = followed.current()
    assert followed.current() is first
    before = ends(first, first)
    shake(*before)

    made.foreign.install(tmp_path)
    second = followed.current()
    shake(*ends(second, second))
    with refuses("its certificate is not accepted"):
        shake(*ends(first, second))
    assert before[1].receive(before[0].wrap(b"goes on")) == b"goes on"

    (tmp_path / "tls.key").write_text("nothing")
    assert followed.current() is second
    assert followed.problem
    made.good.install(tmp_path)
    shake(*ends(followed.current(), first))


@pytest.mark.parametrize(
    ("which", "name"),
    [("other_name", NAME), ("expired", NAME), ("server_only", NAME), pytest.param("good", f".{NAME}", id="not a name")],
)
def test_files_that_every_peer_would_refuse_are_found_at_the_start(made, tmp_path, which, name):
    getattr(made, which).install(tmp_path)
    certificate = "its certificate" if name == NAME else ""
    with pytest.raises(InvalidFile, match=f"other workers would refuse it in hand-offs: {certificate}"):
        HandoffCertificates(tmp_path, name)
