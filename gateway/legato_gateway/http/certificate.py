"""The certificate that a gateway shows to clients, and its private key: two PEM files, read again when they change."""

from pathlib import Path
from ssl import SSLContext

from legato_protocol.followed_files import INTERVAL, FollowedFiles
from legato_protocol.tls_files import server_context


class Certificate(FollowedFiles[SSLContext]):
    """`context` is for new connections: each good pair of files has one of its own, so that a pair which does not fit
    leaves nothing half loaded. Open connections keep theirs."""

    def __init__(self, certificate: Path, key: Path, interval: float = INTERVAL) -> None:
        """Raises InvalidFile."""
        paths = (certificate, key)
        super().__init__("TLS certificate and key", paths, lambda *_: server_context(certificate, key), interval)

    @property
    def context(self) -> SSLContext:
        """The newest."""
        return self.value
