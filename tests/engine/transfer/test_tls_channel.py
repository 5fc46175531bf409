"""TLS between two workers as a state machine: what is let through, and what ends the connection, told in words."""

import contextlib
import random
import ssl
from dataclasses import dataclass
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT, SSLContext, TLSVersion

import certificates
import pytest
from certificates import TLSFiles

from legato_engine.transfer.certificates import HandoffCertificates, contexts
from legato_engine.transfer.tls_channel import ALPN, MARK, ChannelError, TLSChannel, is_for
from legato_protocol.followed_files import InvalidFile
from legato_protocol.tls_files import Contexts

NAME = "s-workers.demo.svc"
FOR_NAME = f"subjectAltName=DNS:{NAME}"


@dataclass(frozen=True)
class Made:
    """Certificates of one authority, and one of another."""

    good: TLSFiles
    other_name: TLSFiles
    server_only: TLSFiles
    expired: TLSFiles
    foreign: TLSFiles


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("tls")
    good = certificates.make(folder / "good", names=FOR_NAME)
    return Made(
        good,
        certificates.make(folder / "name", names="subjectAltName=DNS:t-workers.demo.svc", of=good),
        certificates.make(folder / "purpose", names=f"{FOR_NAME}\nextendedKeyUsage=serverAuth", of=good),
        certificates.make(folder / "expired", names=FOR_NAME, of=good, days=-1),
        certificates.make(folder / "foreign", names=FOR_NAME),
    )


def read(files: TLSFiles) -> Contexts:
    return contexts(files.certificate, files.key, files.authority.read_text())


def ends(client: Contexts, server: Contexts) -> tuple[TLSChannel, TLSChannel]:
    return TLSChannel(client.client, NAME, connects=True), TLSChannel(server.server, NAME, connects=False)


def shake(one: TLSChannel, other: TLSChannel) -> None:
    """As a link does, whose messages are never empty. Raises what an end raises."""
    while data := one.outgoing():
        other.receive(data)
        if data := other.outgoing():
            one.receive(data)


@pytest.fixture
def connected(made: Made) -> tuple[TLSChannel, TLSChannel]:
    one, other = ends(read(made.good), read(made.good))
    shake(one, other)
    assert one.ready
    assert other.ready
    return one, other


@pytest.mark.parametrize("size", [0, 1, 16_380, 16_384, 1 << 20, 5_000_001])
def test_messages_of_any_size_arrive_both_ways(connected: tuple[TLSChannel, TLSChannel], size: int) -> None:
    for source, target in (connected, connected[::-1]):
        message = random.Random(size).randbytes(size)
        assert target.receive(source.wrapped(message)) == message


def test_many_messages_arrive_each_as_one(connected: tuple[TLSChannel, TLSChannel]) -> None:
    one, other = connected
    sent = [one.wrapped(b"%d" % number) for number in range(100)]
    assert [other.receive(data) for data in sent] == [b"%d" % number for number in range(100)]


def test_nothing_of_a_message_or_certificate_is_readable_on_the_way(made: Made) -> None:
    one, other = ends(read(made.good), read(made.good))
    heard = [one.outgoing()]
    other.receive(heard[0])
    heard += [other.outgoing()]
    one.receive(heard[1])
    heard += [one.outgoing(), one.wrapped(b"a secret rkey")]
    other.receive(heard[2])
    assert other.receive(heard[3]) == b"a secret rkey"
    assert not any(b"a secret" in each for each in heard)
    assert not any(b"s-workers" in each for each in heard[1:]), "only the first names who is looked for"


@pytest.mark.parametrize("step", [1, 7, 500])
def test_a_handshake_in_pieces_is_one(made: Made, step: int) -> None:
    one, other = ends(read(made.good), read(made.good))
    while data := one.outgoing():
        first = len(MARK) if data.startswith(MARK) else 0
        for start in range(0, len(data), step):
            piece = data[:first] * (start == 0) + data[first:][start : start + step]
            if piece:
                assert other.receive(piece) is None
        back = other.outgoing()
        for start in range(0, len(back), step):
            one.receive(back[start : start + step])
    assert one.ready
    assert other.ready
    assert other.receive(one.wrapped(b"hello")) == b"hello"


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.9999])
@pytest.mark.parametrize("size", [40, 100_000])
def test_a_message_that_is_cut_ends_the_connection(
    connected: tuple[TLSChannel, TLSChannel], size: int, kept: float
) -> None:
    one, other = connected
    data = one.wrapped(bytes(size))
    with pytest.raises(ChannelError, match="its message is cut"):
        other.receive(data[: int(kept * len(data))])


def test_a_message_that_lacks_whole_records_is_cut(connected: tuple[TLSChannel, TLSChannel]) -> None:
    one, other = connected
    data = one.wrapped(bytes(40_000))
    record = 5 + int.from_bytes(data[3:5], "big")
    assert record < len(data)
    with pytest.raises(ChannelError, match="its message is cut"):
        other.receive(data[:record])


def test_two_messages_in_one_are_refused(connected: tuple[TLSChannel, TLSChannel]) -> None:
    one, other = connected
    with pytest.raises(ChannelError, match="or more than one"):
        other.receive(one.wrapped(b"a") + one.wrapped(b"b"))


@pytest.mark.parametrize("what", ["damaged", "repeated", "out of order", "foreign", "alert"])
def test_what_is_not_the_peers_next_message_ends_the_connection(
    connected: tuple[TLSChannel, TLSChannel], what: str
) -> None:
    one, other = connected
    first, second = one.wrapped(b"first"), one.wrapped(b"second")
    wrong = {
        "damaged": first[:-3] + bytes([first[-3] ^ 1]) + first[-2:],
        "repeated": first,
        "out of order": second,
        "foreign": random.Random(1).randbytes(50),
        "alert": b"\x15\x03\x03\x00\x02\x02\x28",
    }
    if what == "repeated":
        assert other.receive(first) == b"first"
    with pytest.raises(ChannelError, match="TLS with it failed"):
        other.receive(wrong[what])


def babble(channel: TLSChannel, draw: random.Random, start: bytes) -> None:
    for number in range(100):
        channel.receive(start * (number == 0) + draw.randbytes(draw.randrange(1, 400)))


@pytest.mark.parametrize("seed", range(20))
def test_garbage_in_place_of_a_handshake_raises_nothing_else(made: Made, seed: int) -> None:
    one, other = ends(read(made.good), read(made.good))
    for channel, start in ((other, MARK), (one, b"")):
        with pytest.raises(ChannelError):
            babble(channel, random.Random(seed), start)
        assert not channel.ready


def test_a_message_that_is_no_tls_is_told_so(made: Made) -> None:
    _, other = ends(read(made.good), read(made.good))
    with pytest.raises(ChannelError, match="it does not begin with TLS"):
        other.receive(b"a digest, and a hello")


REFUSED = {
    "other_name": "not valid for|it is not for s-workers.demo.svc",
    "expired": "certificate has expired",
    "foreign": "unable to get local issuer certificate|self-signed|self signed",
}


@pytest.mark.parametrize(("which", "reason"), REFUSED.items(), ids=REFUSED)
@pytest.mark.parametrize("connects", [True, False])
def test_a_certificate_that_is_not_of_the_service_is_refused_by_either_end(
    made: Made, which: str, reason: str, connects: bool
) -> None:
    bad, good = read(getattr(made, which)), read(made.good)
    if which == "foreign":  # it knows the service's authority, which has not signed its certificate
        files = made.foreign
        bad = contexts(files.certificate, files.key, made.good.authority.read_text())
    one, other = ends(bad, good) if connects else ends(good, bad)
    with pytest.raises(ChannelError, match=f"its certificate is not accepted: .*({reason})"):
        shake(one, other)
    judge = other if connects else one
    assert not judge.ready


def test_a_certificate_for_servers_alone_is_refused_of_who_connects(made: Made) -> None:
    one, other = ends(read(made.server_only), read(made.good))
    with pytest.raises(ChannelError, match=r"its certificate is not accepted: .*purpose"):
        shake(one, other)


def test_who_shows_no_certificate_is_refused(made: Made) -> None:
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(made.good.authority)
    context.set_alpn_protocols([ALPN])
    one, other = TLSChannel(context, NAME, connects=True), ends(read(made.good), read(made.good))[1]
    with pytest.raises(ChannelError, match="did not return a certificate"):
        shake(one, other)
    assert not other.ready


def test_the_refused_end_hears_why(made: Made) -> None:
    files = made.foreign
    bad = contexts(files.certificate, files.key, made.good.authority.read_text())
    one, other = ends(bad, read(made.good))
    with pytest.raises(ChannelError, match="its certificate is not accepted"):
        shake(one, other)
    with pytest.raises(ChannelError, match=r"TLS with it failed: .*alert unknown ca"):
        one.receive(other.outgoing())


@pytest.mark.parametrize("said", [b"", b"the last one"])
def test_a_peer_that_ends_tls_is_refused_even_behind_a_message(
    connected: tuple[TLSChannel, TLSChannel], said: bytes
) -> None:
    """No worker does so: it closes the connection."""
    one, other = connected
    data = one.wrapped(said) if said else b""
    with contextlib.suppress(ssl.SSLWantReadError):
        one._tls.unwrap()
    with pytest.raises(ChannelError, match="it has ended TLS"):
        other.receive(data + one.outgoing())


def test_older_versions_and_other_protocols_are_refused(made: Made) -> None:
    old, other = read(made.good), read(made.good)
    old.client.minimum_version, old.client.maximum_version = TLSVersion.TLSv1_2, TLSVersion.TLSv1_2
    with pytest.raises(ChannelError, match=r"TLS with it failed: .*protocol"):
        shake(*ends(old, other))
    web = read(made.good)
    web.client.set_alpn_protocols(["http/1.1"])
    with pytest.raises(ChannelError, match="for something else than hand-offs"):
        shake(*ends(web, other))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([NAME], True),
        (["x", NAME.upper()], True),
        (["*.demo.svc"], True),
        ([], False),
        (["*"], False),
        (["*.svc"], False),
        (["s-workers.demo"], False),
        (["*-workers.demo.svc"], False),
        (["s-workers.demo.svc.evil"], False),
    ],
)
def test_names_of_certificates(names: list[str], found: bool) -> None:
    assert is_for(NAME, names) is found


def test_new_connections_show_the_files_of_now(made: Made, tmp_path: Path) -> None:
    made.good.install(tmp_path)
    followed = HandoffCertificates(tmp_path, NAME)
    first = followed.current()
    assert followed.current() is first
    before = ends(first, first)
    shake(*before)

    made.foreign.install(tmp_path)
    second = followed.current()
    shake(*ends(second, second))
    with pytest.raises(ChannelError, match="its certificate is not accepted"):
        shake(*ends(first, second))
    assert before[1].receive(before[0].wrapped(b"goes on")) == b"goes on"

    (tmp_path / "tls.key").write_text("nothing")
    assert followed.current() is second
    assert followed.problem
    made.good.install(tmp_path)
    shake(*ends(followed.current(), first))


@pytest.mark.parametrize("which", ["other_name", "expired", "server_only"])
def test_a_certificate_that_every_peer_would_refuse_is_found_at_the_start(
    made: Made, tmp_path: Path, which: str
) -> None:
    getattr(made, which).install(tmp_path)
    with pytest.raises(InvalidFile, match="other workers would refuse it in hand-offs: its certificate"):
        HandoffCertificates(tmp_path, NAME)


def test_what_is_no_name_is_refused_at_the_start(made: Made, tmp_path: Path) -> None:
    made.good.install(tmp_path)
    with pytest.raises(InvalidFile, match="other workers would refuse it in hand-offs: "):
        HandoffCertificates(tmp_path, f".{NAME}")
