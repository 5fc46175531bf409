"""Connections to other workers: who is at the other end, and may it be trusted?

Every message is sealed with a keyed digest, so that a flipped byte or a stranger's message is seen. Nothing is taken
from a connection before its `PeerHello`: proof of the token, a common version, same KV revision and layout.
"""

import hmac
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256

from msgspec import structs

from legato_engine.transfer.link import Link
from legato_protocol import handoff
from legato_protocol.messages import BadFrame
from legato_protocol.stream import Peer, encode, in_common

_SEAL_BYTES = 8
_MOST_STRANGERS = 64  # connections of peers that have not said who they are
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    key: bytes  # of seals


@dataclass(slots=True)
class _Connection:
    accepted: bool
    worker: str
    epoch: str
    due: float  # by when the peer has said who it is
    arena: int = 0
    trusted: bool = False
    closing: bool = False  # from here: the event of its end is yet to come
    refusal: str = ""  # why, if the peer was not to be trusted
    token: _Token | None = None  # that its messages are sealed with


def prove(token: str, worker: str, epoch: str) -> bytes:
    """What `PeerHello.proof` holds: only who knows the token can make it."""
    return hmac.digest(token.encode(), f"{len(worker)}:{worker}:{epoch}".encode(), sha256)


class Peers:
    """The table of connections. A connection is trusted from its valid hello until it is closed.

    Who does not say hello is closed after `patience` seconds.
    """

    def __init__(
        self, link: Link, hello: handoff.PeerHello, token: str, patience: float, clock: Callable[[], float]
    ) -> None:
        """`hello` is what this worker says of itself."""
        self._patience = patience
        self._clock = clock
        self._link = link
        self._hello = hello
        self._tokens: tuple[_Token, ...] = ()  # that are taken; the first is the one to show
        self.trust((token,))
        self._connections: dict[int, _Connection] = {}
        self.refused = 0
        self.bad_messages = 0

    def trust(self, tokens: Sequence[str]) -> None:
        """Show the first of these to peers from now on, and take any of them. Those that are connected keep theirs."""
        self._tokens = tuple(_Token(token, sha256(token.encode()).digest()) for token in tokens)

    def reach(self, peer: Peer) -> int:
        """A connection to this worker and epoch: one that exists, or one that is being opened."""
        for number, connection in self._connections.items():
            if (connection.worker, connection.epoch) == (peer.worker, peer.epoch) and not connection.closing:
                return number
        number = self._link.connect(peer.address)
        due = self._clock() + self._patience
        self._connections[number] = _Connection(
            accepted=False, worker=peer.worker, epoch=peer.epoch, due=due, token=self._tokens[0]
        )
        return number

    def fence(self, number: int) -> bool:
        """Closes this side's endpoint; whether that was not under way already."""
        connection = self._connections.get(number)
        if connection is None or connection.closing:
            return False
        connection.closing = True
        self._link.fence(number)
        return True

    def tick(self, now: float) -> None:
        for number, connection in list(self._connections.items()):
            if now >= connection.due and not (connection.trusted or connection.closing):
                self._refuse(number, f"it did not say who it is for {self._patience:g} seconds")

    def timers(self) -> Iterator[float]:
        """When `tick` has something to do."""
        return (each.due for each in self._connections.values() if not (each.trusted or each.closing))

    def trusted(self, number: int) -> bool:
        connection = self._connections.get(number)
        return connection is not None and connection.trusted

    def identity(self, number: int) -> tuple[str, str]:
        """The peer's worker and epoch."""
        return self._connections[number].worker, self._connections[number].epoch

    def epoch(self, number: int) -> str:
        return self._connections[number].epoch

    def arena(self, number: int) -> int:
        """Base address of the peer's arena."""
        return self._connections[number].arena

    def refusal(self, number: int) -> str:
        """Why the connection was closed here, if the peer was not to be trusted."""
        connection = self._connections.get(number)
        return connection.refusal if connection else ""

    def send(self, number: int, message: handoff.HandoffMessage) -> None:
        """Sends when the peer is trusted; a connection that is gone swallows it (its end is an event)."""
        if self.trusted(number):
            self._link.send(number, _sealed(encode(message), self._token(number)))

    def connected(self, number: int, accepted: bool) -> None:
        if accepted:
            self._make_room()
            due = self._clock() + self._patience
            self._connections[number] = _Connection(accepted=True, worker="", epoch="", due=due)
        elif number in self._connections:
            self._say_hello(number)

    def forget(self, number: int) -> None:
        """The link says that the connection has ended."""
        self._connections.pop(number, None)

    def receive(self, number: int, data: bytes) -> handoff.HandoffMessage | None:
        """The message, for a trusted peer; None for one that was refused. A hello that is accepted is returned too."""
        connection = self._connections.get(number)
        if connection is None or connection.refusal:
            return None
        try:
            message = handoff.decode(self._unseal(data, connection))
            if isinstance(message, handoff.PeerHello) == connection.trusted:
                raise BadFrame("a hello where none is due, or none where one is")
        except BadFrame as error:
            self._refuse_message(number, connection, str(error))
            return None
        if isinstance(message, handoff.PeerHello):
            return self._greet(number, connection, message)
        return message

    def _refuse_message(self, number: int, connection: _Connection, reason: str) -> None:
        self.bad_messages += 1
        if not connection.trusted:
            self._refuse(number, reason)

    def _greet(self, number: int, connection: _Connection, hello: handoff.PeerHello) -> handoff.PeerHello | None:
        fault = self._fault(connection, hello, self._token(number))
        if fault:
            self._refuse(number, fault)
            return None
        connection.worker, connection.epoch, connection.arena = hello.worker, hello.epoch, hello.arena
        self._link.attach(number, hello.rkey)
        if connection.accepted:
            self._say_hello(number)
        connection.trusted = True
        return hello

    def _say_hello(self, number: int) -> None:
        token, own = self._token(number), self._hello
        hello = structs.replace(own, proof=prove(token.text, own.worker, own.epoch))
        self._link.send(number, _sealed(encode(hello), token))

    def _fault(self, connection: _Connection, hello: handoff.PeerHello, token: _Token) -> str:
        """Why this peer is not the one to exchange KV with; empty when it is."""
        own = self._hello
        if not hmac.compare_digest(hello.proof, prove(token.text, hello.worker, hello.epoch)):
            return "its proof of the token is wrong"
        if not in_common(hello.version, hello.oldest, (handoff.OLDEST, handoff.VERSION)):
            return f"its version is {hello.version}, ours is {handoff.VERSION}"
        for name in ("kv_revision", "layout"):
            if getattr(hello, name) != getattr(own, name):
                return f"its {name} is {getattr(hello, name)!r}, ours is {getattr(own, name)!r}"
        if not connection.accepted and (hello.worker, hello.epoch) != (connection.worker, connection.epoch):
            return f"{hello.worker} of epoch {hello.epoch} answered for {connection.worker} of {connection.epoch}"
        return ""

    def _refuse(self, number: int, reason: str) -> None:
        self.refused += 1
        self._connections[number].refusal = reason
        _log.warning("refused a peer: %s", reason)
        self.fence(number)

    def _make_room(self) -> None:
        """The longest silent stranger makes room for a new one: an honest peer says hello soon."""
        strangers = [n for n, each in self._connections.items() if each.accepted and not (each.trusted or each.closing)]
        if len(strangers) >= _MOST_STRANGERS:
            self._refuse(strangers[0], "it did not say who it is, and there are too many such connections")

    def _token(self, number: int) -> _Token:
        """That is used with a peer that was connected to, or has shown which one it has."""
        token = self._connections[number].token
        assert token is not None
        return token

    def _unseal(self, data: bytes, connection: _Connection) -> bytes:
        """What is in a message. The first of a peer that connected tells by its seal which token it shows."""
        seal, rest = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
        for token in (connection.token,) if connection.token else self._tokens:
            if hmac.compare_digest(seal, _digest(rest, token)):
                connection.token = token
                return rest
        raise BadFrame("its seal does not fit: damaged, or of another service")


def _sealed(data: bytes, token: _Token) -> bytes:
    return _digest(data, token) + data


def _digest(data: bytes, token: _Token) -> bytes:
    return blake2b(data, digest_size=_SEAL_BYTES, key=token.key).digest()
