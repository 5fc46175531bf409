"""Connections to other workers: identifies the peer and decides whether to trust it.

Every message is sealed (`seals`) and goes through the connection's channel (`channels`): TLS if both workers have it.
The first message of a connection must be `PeerHello`, with a proof of the token, a common version, and the same KV
revision and layout.
"""

import hmac
import logging
from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from legato_engine.transfer.connections.channels import Channel, Channels, PlainRefused
from legato_engine.transfer.connections.connection import Connection
from legato_engine.transfer.connections.seals import Token, prove, seal, unseal
from legato_engine.transfer.connections.tls_channel import ChannelError
from legato_engine.transfer.link import Link
from legato_protocol.wire import handoff
from legato_protocol.wire.messages import BadFrame
from legato_protocol.wire.stream import Peer, encode, in_common

_MOST_STRANGERS = 64  # connections of peers that have not identified themselves
_log = logging.getLogger(__name__)


class Peers:
    """The table of connections. A connection is trusted from its valid hello until it is closed.

    A connection without a hello is closed after `patience` seconds.
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
        """`hello` is this worker's own hello. Without `channels` there is no TLS."""
        self._patience = patience
        self._clock = clock
        self._link = link
        self._hello = hello
        self._channels = channels or Channels()
        self._tokens: tuple[Token, ...] = ()  # accepted tokens; the first is shown
        self.trust((token,))
        self._connections: dict[int, Connection] = {}
        self.refused = 0
        self.refused_plain = 0
        self.failed_tls = 0
        self.bad_messages = 0
        self.failed_in_a_row = 0  # connections opened here, counted while no identified peer is connected

    def trust(self, tokens: Sequence[str]) -> None:
        """Shows the first of these tokens to peers from now on, and accepts any. Connections keep their tokens."""
        self._tokens = tuple(Token.from_text(token) for token in tokens)

    def reach(self, peer: Peer) -> int:
        """Returns a connection to this worker and epoch: an existing one, or a new one."""
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
        """Closes this side's endpoint; False if it was closed already."""
        connection = self._connections.get(number)
        if connection is None or connection.closing:
            return False
        connection.closing = True
        self._link.fence(number)
        return True

    def tick(self, now: float) -> None:
        for number, connection in list(self._connections.items()):
            if now >= connection.due and not (connection.trusted or connection.closing):
                self._refuse(number, f"it did not identify itself within {self._patience:g} seconds")

    def timers(self) -> Iterator[float]:
        """Times at which `tick` has work."""
        return (each.due for each in self._connections.values() if not (each.trusted or each.closing))

    def is_trusted(self, number: int) -> bool:
        connection = self._connections.get(number)
        return connection is not None and connection.trusted

    def count(self, *, secured: bool) -> int:
        """Number of connections to trusted peers with or without TLS."""
        return sum(each.trusted and each.secured == secured for each in self._connections.values())

    def leads_to(self, number: int, peer: Peer) -> bool:
        """True if the connection is to this worker and epoch, and uses TLS if that is required."""
        connection = self._connections[number]
        return connection.is_to(peer) and (connection.secured or not self._channels.secures(peer))

    def identity(self, number: int) -> tuple[str, str]:
        """The peer's worker and epoch."""
        return self._connections[number].worker, self._connections[number].epoch

    def token(self, number: int) -> Token:
        """The token that a trusted peer uses."""
        token = self._connections[number].token
        assert token is not None
        return token

    def epoch(self, number: int) -> str:
        return self._connections[number].epoch

    def arena(self, number: int) -> int:
        """Base address of the peer's arena."""
        return self._connections[number].arena

    def refusal(self, number: int) -> str:
        """Why the peer was refused, or ""."""
        connection = self._connections.get(number)
        return connection.refusal if connection else ""

    def send(self, number: int, message: handoff.HandoffMessage) -> None:
        """Sends to a trusted peer; ignored if the connection has ended, which is an event."""
        connection = self._connections.get(number)
        if connection is not None and connection.trusted and not connection.closing:
            self._send(number, connection, message)

    def on_connected(self, number: int, accepted: bool) -> None:
        if accepted:
            self._make_room()
            due = self._clock() + self._patience
            self._connections[number] = Connection(accepted=True, worker="", epoch="", due=due)
        elif connection := self._connections.get(number):
            assert connection.channel is not None
            self._flush(number, connection.channel)
            if connection.channel.ready:
                self._send_hello(number, connection)

    def forget(self, number: int, reason: str) -> None:
        """The connection has ended."""
        connection = self._connections.pop(number, None)
        reached = any(each.trusted for each in self._connections.values())
        if connection is None or connection.accepted or connection.trusted or reached:
            return
        self.failed_in_a_row += 1
        if self.failed_in_a_row == 1:
            _log.warning("a connection to %s failed before a message came from it: %s", connection.worker, reason)

    def receive(self, number: int, data: bytes) -> handoff.HandoffMessage | None:
        """Returns the message of a trusted peer, including its hello; None if the peer is refused."""
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
                raise BadFrame("an unexpected hello, or another message before the hello")
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
        """Returns the channel's message, if it is complete. Raises ChannelError after an alert to the peer."""
        channel = connection.channel = connection.channel or self._channels.accept(data)
        was_ready = channel.ready
        try:
            inner = channel.receive(data)
        finally:
            self._flush(number, channel)
        if channel.ready and not (was_ready or connection.accepted):
            self._send_hello(number, connection)
        return inner

    def _flush(self, number: int, channel: Channel) -> None:
        if data := channel.outgoing():
            self._link.send(number, data)

    def _send(self, number: int, connection: Connection, message: handoff.HandoffMessage) -> None:
        assert connection.channel is not None
        assert connection.token is not None
        self._link.send(number, connection.channel.wrap(seal(encode(message), connection.token)))

    def _greet(self, number: int, connection: Connection, hello: handoff.PeerHello) -> handoff.PeerHello | None:
        fault = self._fault(connection, hello)
        if fault:
            self._refuse(number, fault)
            return None
        connection.worker, connection.epoch, connection.arena = hello.worker, hello.epoch, hello.arena
        self._link.attach(number, hello.rkey)
        if connection.accepted:
            self._send_hello(number, connection)
        connection.trusted = True
        self.failed_in_a_row = 0
        return hello

    def _send_hello(self, number: int, connection: Connection) -> None:
        """Sends this worker's hello with the connection's token."""
        assert connection.token is not None
        own = self._hello
        proof = prove(connection.token.text, own.worker, own.epoch)
        self._send(number, connection, structs.replace(own, proof=proof))

    def _fault(self, connection: Connection, hello: handoff.PeerHello) -> str:
        """Why this peer must not exchange KV with this worker, or ""."""
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
        """Closes the oldest unidentified connection if there are too many: an honest peer sends its hello soon."""
        strangers = [n for n, each in self._connections.items() if each.accepted and not (each.trusted or each.closing)]
        if len(strangers) >= _MOST_STRANGERS:
            self._refuse(strangers[0], "it did not identify itself, and there are too many such connections")

    def _unseal(self, data: bytes, connection: Connection) -> bytes:
        """Returns the content of a message. The seal of an accepted peer's first message decides its token."""
        for token in (connection.token,) if connection.token else self._tokens:
            inner = unseal(data, token)
            if inner is not None:
                connection.token = token
                return inner
        raise BadFrame("its seal is wrong: the message is damaged, or from another service")
