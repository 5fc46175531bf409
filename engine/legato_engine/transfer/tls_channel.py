"""TLS of one connection between two workers, as a state machine: what the link brought goes in, what it is to send
comes out. No I/O, and no cryptography of its own: all of that is `ssl.SSLObject`'s.

A message of the link holds a part of the handshake or, after that, exactly one control message. Both ends show a
certificate, and both check the other's: its authority, its dates, its purpose and the name that it is for.
"""

import ssl
from typing import Any

MARK = b"legato\x00\x01"  # begins what a worker that connects sends first; without TLS, a keyed digest is there
ALPN = "legato-handoff"
_LENGTH_BYTES = 4
_MOST_READ = 1 << 20


class ChannelError(Exception):
    """The connection cannot be used: the text says what its peer did or lacks."""


class TLSChannel:
    """One end. `outgoing` is to be sent after it was made, and after each `receive`, also one that raises."""

    secured = True

    def __init__(self, context: ssl.SSLContext, name: str, *, connects: bool) -> None:
        """The peer's certificate must be for `name`. See `certificates` for contexts."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not connects, server_hostname=name if connects else None
        )
        self._name = name
        self._connects = connects
        self._marked = False  # the mark was sent, or came
        self.ready = False  # the peer's certificate is accepted, and messages can be sent
        if connects:
            self._shake()

    def outgoing(self) -> bytes:
        """For the link to send now; empty when there is nothing."""
        data = self._outgoing.read()
        if data and self._connects and not self._marked:
            self._marked = True
            return MARK + data
        return data

    def wrapped(self, message: bytes) -> bytes:
        """A control message as the link has to send it, once this end is `ready`."""
        rest = memoryview(len(message).to_bytes(_LENGTH_BYTES, "big") + message)
        while rest:
            rest = rest[self._tls.write(rest) :]
        return self._outgoing.read()

    def receive(self, data: bytes) -> bytes | None:
        """The control message in this message of the link; None where it was the handshake's.

        Raises ChannelError for whatever else it is, and for a certificate that is not accepted.
        """
        if not (self._connects or self._marked):
            if not data.startswith(MARK):
                raise ChannelError("it does not begin with TLS")
            self._marked, data = True, data[len(MARK) :]
        was_ready = self.ready
        self._incoming.write(data)
        try:
            if not self.ready:
                self._shake()
            plain = self._read() if self.ready else b""
        except ssl.SSLCertVerificationError as error:
            raise ChannelError(f"its certificate is not accepted: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise ChannelError(f"TLS with it failed: {_why(error)}") from None
        return _unframed(plain) if plain or was_ready else None

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        if self._tls.selected_alpn_protocol() != ALPN:
            raise ChannelError("its TLS is for something else than hand-offs")
        if not (self._connects or is_for(self._name, self._names())):
            raise ChannelError(f"its certificate is not accepted: it is not for {self._name}")
        self.ready = True

    def _names(self) -> list[str]:
        """Of the peer's certificate."""
        found: Any = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        return [text for kind, text in found if kind == "DNS"]

    def _read(self) -> bytes:
        parts: list[bytes] = []
        try:
            while part := self._tls.read(_MOST_READ):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts)
        raise ChannelError("it has ended TLS")


def is_for(name: str, names: list[str]) -> bool:
    """Whether a certificate for these is one for `name`, by RFC 6125: `*` stands for the first label alone.

    OpenSSL does so for the end that connects, and Python lets only that end ask it to.
    """
    _, _, parent = name.lower().partition(".")
    return any(each.lower() in (name.lower(), f"*.{parent}") for each in names)


def _unframed(plain: bytes) -> bytes:
    length, message = plain[:_LENGTH_BYTES], plain[_LENGTH_BYTES:]
    if len(length) < _LENGTH_BYTES or int.from_bytes(length, "big") != len(message):
        raise ChannelError("its message is cut, or more than one")
    return message


def _why(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
