"""The certificate that a gateway shows to clients, and its private key: two PEM files, read again when they change."""

import ssl
from pathlib import Path
from ssl import SSLContext

from legato_gateway.followed_files import INTERVAL, FollowedFiles, InvalidFile


class Certificate(FollowedFiles[SSLContext]):
    """`context` is for new connections: each good pair of files has one of its own, so that a pair which does not fit
    leaves nothing half loaded. Open connections keep theirs."""

    def __init__(self, certificate: Path, key: Path, interval: float = INTERVAL) -> None:
        """Raises InvalidFile."""
        super().__init__("TLS certificate and key", (certificate, key), lambda *_: _context(certificate, key), interval)

    @property
    def context(self) -> SSLContext:
        """The newest."""
        return self.value


def _context(certificate: Path, key: Path) -> SSLContext:
    context = SSLContext(ssl.PROTOCOL_TLS_SERVER)  # TLS 1.2 or later
    context.options |= ssl.OP_NO_RENEGOTIATION  # it costs the server more than the client
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # an encrypted key is refused, and not asked for
    except (ssl.SSLError, OSError) as error:
        raise InvalidFile(f"no certificate in PEM whose private key is in {key}: {_why(error)}") from None
    return context


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or "not understood"
    return str(reason).lower().replace("_", " ")
