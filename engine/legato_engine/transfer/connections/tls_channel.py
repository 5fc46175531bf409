"""TLS of one connection between two workers as a state machine without I/O, on top of `ssl.SSLObject`.

A message of the link holds a part of the handshake or, afterwards, exactly one control message. Both ends show a
certificate and check the other's authority, dates, purpose and name.
"""

import ssl
from typing import Any

MARK = b"legato\x00\x01"  # begins the first message of a connecting worker with TLS; without TLS, that is a seal
ALPN = "legato-handoff"
_LENGTH_BYTES = 4
_MOST_READ = 1 << 20


class ChannelError(Exception):
    """The connection cannot be used. The text says what the peer did or lacks."""


class TLSChannel:
    """One end of a TLS connection.

    The caller sends `outgoing` after the constructor and after each `receive`, even if that raises.
    """

    secured = True

    def __init__(self, context: ssl.SSLContext, name: str, *, connects: bool) -> None:
        """The peer's certificate must be for `name`. See `certificates` for contexts."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not connects, server_hostname=name if connects else None
        )
        self._name = name
        self._connects = connects
        self._marked = False  # the mark was sent or received
        self.ready = False  # the peer's certificate is accepted, and messages can be sent
        if connects:
            self._shake()

    def outgoing(self) -> bytes:
        """Returns the data that the link has to send now; may be empty."""
        data = self._outgoing.read()
        if data and self._connects and not self._marked:
            self._marked = True
            return MARK + data
        return data

    def wrap(self, message: bytes) -> bytes:
        """Encodes a control message for the link; allowed once this end is `ready`."""
        rest = memoryview(len(message).to_bytes(_LENGTH_BYTES, "big") + message)
        while rest:
            rest = rest[self._tls.write(rest) :]
        return self._outgoing.read()

    def receive(self, data: bytes) -> bytes | None:
        """Returns the control message in this message of the link; None for a part of the handshake.

        Raises ChannelError for anything else, and for a certificate that is not accepted.
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
            raise ChannelError("its TLS is not for hand-offs")
        if not (self._connects or is_for(self._name, self._names())):
            raise ChannelError(f"its certificate is not accepted: it is not for {self._name}")
        self.ready = True

    def _names(self) -> list[str]:
        """DNS names in the peer's certificate."""
        names: Any = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        return [text for kind, text in names if kind == "DNS"]

    def _read(self) -> bytes:
        parts: list[bytes] = []
        try:
            while part := self._tls.read(_MOST_READ):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts)
        raise ChannelError("it has ended TLS")


def is_for(name: str, names: list[str]) -> bool:
    """True if a certificate for `names` is valid for `name`, by RFC 6125: `*` matches exactly the first label.

    OpenSSL checks this for the connecting end; Python does not offer it for the other end.
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
