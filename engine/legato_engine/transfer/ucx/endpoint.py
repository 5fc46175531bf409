"""One endpoint of the UCX link: ordered messages, puts with completion, and a final close.

Used only in the UCX thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from legato_engine.transfer.link import LinkError, PutDone, PutFailed, PutSpan
from legato_engine.transfer.ucx.ucp import IN_PROGRESS, Ucp

_NUMBER_BYTES = 8
_GREETING = b"\xff" * _NUMBER_BYTES  # in place of a number
_MOST_EARLY = 4096  # messages that may overtake one
_MOST_EARLY_BYTES = 64 << 20
_HELLO, _ANSWER, _SETTLED = b"0", b"1", b"2"


@dataclass(slots=True)
class _Put:
    tag: int
    requests: list[int]  # the flush is the last one


class UcxEndpoint:
    """An endpoint. Messages are numbered, because UCX may let a small one overtake a large one.

    The link exchanges greetings first: the connecting side sends one, the other side answers, and the first side
    answers again. Keys and puts wait for the answer: UCX crashes in a put over an endpoint whose lanes are not set up,
    which they are once messages have gone in both directions.
    """

    def __init__(self, number: int, handle: int, ucp: Ucp, client: tuple[str, int] | None) -> None:
        """`client` is the address of a peer that connected; None if this side connected."""
        self.number = number
        self.client = client
        self.handle = handle
        self._ucp = ucp
        self._failed = False
        self._closing = 0
        self._key = 0
        self._sent = 0
        self._got = 0
        self._early: dict[int, bytes] = {}
        self._early_bytes = 0
        self._sends: list[tuple[int, bytes]] = []  # request and the bytes that it reads
        self._puts: list[_Put] = []
        self._settled = self._to_settle = False
        self._packed_key = b""
        self._early_puts: list[tuple[Sequence[PutSpan], int]] = []
        if client is None:
            self._greet(_HELLO)

    def attach(self, rkey: bytes) -> None:
        """Sets the peer's key. Raises LinkError if it is invalid; a later error breaks the connection."""
        self._packed_key = rkey
        if self._settled:
            self._key = self._ucp.unpack_key(self.handle, rkey)

    def send(self, data: bytes) -> None:
        if self._failed:
            return
        self._send(self._sent.to_bytes(_NUMBER_BYTES, "little") + data)
        self._sent += 1

    def _send(self, message: bytes) -> None:
        self._free_sends()
        self._sends.append((self._ucp.send(self.handle, message), message))

    def put(self, spans: Sequence[PutSpan], tag: int) -> bool:
        """Starts a put; False if that is impossible."""
        if self._failed or not self._packed_key:
            return False
        if not self._settled:
            self._early_puts.append((spans, tag))
            return True
        requests = [self._ucp.put(self.handle, s.local, s.length, s.remote, self._key) for s in spans]
        requests.append(self._ucp.flush(self.handle))
        self._puts.append(_Put(tag, requests))
        return True

    def take(self, message: bytes) -> None:
        """Stores a received message. Raises LinkError if too many messages, or this one, overtook the next one."""
        if message[:_NUMBER_BYTES] == _GREETING:
            self._on_greeting(message[_NUMBER_BYTES:])
            return
        number = int.from_bytes(message[:_NUMBER_BYTES], "little")
        self._early_bytes += len(message)
        if not self._got <= number < self._got + _MOST_EARLY or self._early_bytes > _MOST_EARLY_BYTES:
            raise LinkError(f"message {number} came, where {self._got} is next")
        self._early[number] = message[_NUMBER_BYTES:]

    def take_ordered(self) -> Iterator[bytes]:
        """Yields the received messages that are next in order."""
        while self._got in self._early:
            message = self._early.pop(self._got)
            self._early_bytes -= _NUMBER_BYTES + len(message)
            self._got += 1
            yield message

    def take_ended_puts(self) -> list[PutDone | PutFailed]:
        """Events of puts that no longer read or write."""
        events: list[PutDone | PutFailed] = []
        if self._failed:
            events += [
                PutFailed(self.number, tag, "the connection ended before it was settled") for _, tag in self._early_puts
            ]
            self._early_puts.clear()
        for put in list(self._puts):
            states = [self._ucp.status(request) for request in put.requests]
            if IN_PROGRESS in states:
                continue
            self._puts.remove(put)
            for request in put.requests:
                self._ucp.free(request)
            if any(states):
                events.append(PutFailed(self.number, put.tag, f"UCX status {min(states)}"))
            else:
                events.append(PutDone(self.number, put.tag))
        return events

    def close(self) -> None:
        """Starts to close the endpoint without the peer's consent."""
        self._failed = True
        self._closing = self._ucp.close(self.handle)

    def is_closed(self) -> bool:
        """True if the close and every put have ended."""
        self._free_sends()
        states = [self._ucp.status(request) for put in self._puts for request in put.requests]
        return self._ucp.status(self._closing) != IN_PROGRESS and IN_PROGRESS not in states and not self._sends

    def release(self) -> None:
        self._ucp.free(self._closing)
        if self._key:
            self._ucp.destroy_key(self._key)

    def _greet(self, word: bytes) -> None:
        if not self._failed:
            self._send(_GREETING + word)

    def _on_greeting(self, word: bytes) -> None:
        if word == _HELLO:
            self._greet(_ANSWER)
            return
        if word == _ANSWER:
            self._greet(_SETTLED)
        self._to_settle = True

    def settle(self) -> None:
        """Starts the puts that waited for the greetings. Called outside of UCX's callbacks."""
        if self._settled or not self._to_settle or self._failed:
            return
        self._settled = True
        if self._packed_key:
            self.attach(self._packed_key)
        early, self._early_puts = self._early_puts, []
        for spans, tag in early:
            self.put(spans, tag)

    def _free_sends(self) -> None:
        ended = [request for request, _ in self._sends if self._ucp.status(request) != IN_PROGRESS]
        self._sends = [(request, kept) for request, kept in self._sends if request not in ended]
        for request in ended:
            self._ucp.free(request)

    def mark_failed(self) -> None:
        """UCX reports that the connection is lost: nothing more is started over it."""
        self._failed = True
