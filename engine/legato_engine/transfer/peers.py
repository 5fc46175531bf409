"""Connections to other workers: who is at the other end, and may it be trusted?

Every message is sealed (`seals`), and goes through the connection's channel (`channels`): TLS where both workers have
it. Nothing is taken from a connection before its `PeerHello`: proof of the token, a common version, same KV revision
and layout.
"""

import hmac
import logging
from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from legato_engine.transfer.channels import Channel, Channels, PlainRefused
from legato_engine.transfer.connection import Connection
from legato_engine.transfer.link import Link
from legato_engine.transfer.seals import Token, prove, sealed, unsealed
from legato_engine.transfer.tls_channel import ChannelError
from legato_protocol import handoff
from legato_protocol.messages import BadFrame
from legato_protocol.stream import Peer, encode, in_common

_MOST_STRANGERS = 64  # connections of peers that have not said who they are
_log = logging.getLogger(__name__)


class Peers:
    """The table of connections. A connection is trusted from its valid hello until it is closed.

    Who does not say hello is closed after `patience` seconds.
    """

    def __init__(
        self,
        link: Link,
        hello: handoff.PeerHello,
        token: str,
        patience: float,
        clock: Callable[[], float],
        channels: Channels | None = None,
    ) -> None:
        """`hello` is what this worker says of itself. Without `channels` there is no TLS."""
        self._patience = patience
        self._clock = clock
        self._link = link
        self._hello = hello
        self._channels = channels or Channels()
        self._tokens: tuple[Token, ...] = ()  # that are taken; the first is the one to show
        self.trust((token,))
        self._connections: dict[int, Connection] = {}
        self.refused = 0
        self.refused_plain = 0
        self.failed_tls = 0
        self.bad_messages = 0
        self.failed_in_a_row = 0  # connections opened here, counted while no identified peer is connected

    def trust(self, tokens: Sequence[str]) -> None:
        """Show the first of these to peers from now on, and take any of them. Those that are connected keep theirs."""
        self._tokens = tuple(Token.of(token) for token in tokens)

    def reach(self, peer: Peer) -> int:
        """A connection to this worker and epoch: one that exists, or one that is being opened."""
        for number, connection in self._connections.items():
            if self.leads_to(number, peer) and not connection.closing:
                return number
        channel = self._channels.connect(peer)
        number = self._link.connect(peer.address)
        due = self._clock() + self._patience
        self._connections[number] = Connection(
            accepted=False, worker=peer.worker, epoch=peer.epoch, due=due, channel=channel, token=self._tokens[0]
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

    def count(self, *, secured: bool) -> int:
        """How many connections to trusted peers go through TLS, or do not."""
        return sum(each.trusted and each.secured == secured for each in self._connections.values())

    def leads_to(self, number: int, peer: Peer) -> bool:
        """Whether this worker and epoch is there, behind TLS if it has to be: who knows the token alone is not it."""
        connection = self._connections[number]
        return connection.is_to(peer) and (connection.secured or not self._channels.secures(peer))

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
        connection = self._connections.get(number)
        if connection is not None and connection.trusted and not connection.closing:
            self._say(number, connection, message)

    def connected(self, number: int, accepted: bool) -> None:
        if accepted:
            self._make_room()
            due = self._clock() + self._patience
            self._connections[number] = Connection(accepted=True, worker="", epoch="", due=due)
        elif connection := self._connections.get(number):
            assert connection.channel is not None
            self._flush(number, connection.channel)
            if connection.channel.ready:
                self._say_hello(number, connection)

    def forget(self, number: int, reason: str) -> None:
        """The link says that the connection has ended."""
        connection = self._connections.pop(number, None)
        reached = any(each.trusted for each in self._connections.values())
        if connection is None or connection.accepted or connection.trusted or reached:
            return
        self.failed_in_a_row += 1
        if self.failed_in_a_row == 1:
            _log.warning("a connection to %s failed before a message came from it: %s", connection.worker, reason)

    def receive(self, number: int, data: bytes) -> handoff.HandoffMessage | None:
        """The message, for a trusted peer; None for one that was refused. A hello that is accepted is returned too."""
        connection = self._connections.get(number)
        if connection is None or connection.refusal:
            return None
        try:
            inner = self._unwrap(number, connection, data)
        except ChannelError as error:
            self._refuse_channel(number, error)
            return None
        return None if inner is None else self._read(number, connection, inner)

    def _read(self, number: int, connection: Connection, data: bytes) -> handoff.HandoffMessage | None:
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

    def _refuse_message(self, number: int, connection: Connection, reason: str) -> None:
        self.bad_messages += 1
        if not connection.trusted:
            self._refuse(number, reason)

    def _refuse_channel(self, number: int, error: ChannelError) -> None:
        if isinstance(error, PlainRefused):
            self.refused_plain += 1
        else:
            self.failed_tls += 1
        self._refuse(number, str(error))

    def _unwrap(self, number: int, connection: Connection, data: bytes) -> bytes | None:
        """What came through the channel, if it was a message. Raises ChannelError, after the peer was told why."""
        channel = connection.channel = connection.channel or self._channels.accept(data)
        was_ready = channel.ready
        try:
            inner = channel.receive(data)
        finally:
            self._flush(number, channel)
        if channel.ready and not (was_ready or connection.accepted):
            self._say_hello(number, connection)
        return inner

    def _flush(self, number: int, channel: Channel) -> None:
        if data := channel.outgoing():
            self._link.send(number, data)

    def _say(self, number: int, connection: Connection, message: handoff.HandoffMessage) -> None:
        assert connection.channel is not None
        assert connection.token is not None
        self._link.send(number, connection.channel.wrapped(sealed(encode(message), connection.token)))

    def _greet(self, number: int, connection: Connection, hello: handoff.PeerHello) -> handoff.PeerHello | None:
        fault = self._fault(connection, hello)
        if fault:
            self._refuse(number, fault)
            return None
        connection.worker, connection.epoch, connection.arena = hello.worker, hello.epoch, hello.arena
        self._link.attach(number, hello.rkey)
        if connection.accepted:
            self._say_hello(number, connection)
        connection.trusted = True
        self.failed_in_a_row = 0
        return hello

    def _say_hello(self, number: int, connection: Connection) -> None:
        """With the token that the peer was connected to with, or has shown that it has."""
        assert connection.token is not None
        own = self._hello
        proof = prove(connection.token.text, own.worker, own.epoch)
        self._say(number, connection, structs.replace(own, proof=proof))

    def _fault(self, connection: Connection, hello: handoff.PeerHello) -> str:
        """Why this peer is not the one to exchange KV with; empty when it is."""
        own, token = self._hello, connection.token
        assert token is not None
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

    def _unseal(self, data: bytes, connection: Connection) -> bytes:
        """What is in a message. The first of a peer that connected tells by its seal which token it shows."""
        for token in (connection.token,) if connection.token else self._tokens:
            inner = unsealed(data, token)
            if inner is not None:
                connection.token = token
                return inner
        raise BadFrame("its seal does not fit: damaged, or of another service")
