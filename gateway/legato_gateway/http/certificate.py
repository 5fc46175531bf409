"""The gateway's certificate for clients and its private key: two PEM files, read again when they change."""

from pathlib import Path
from ssl import SSLContext

from legato_protocol.process.followed_files import INTERVAL, FollowedFiles
from legato_protocol.security.tls_files import server_context


class PublicCertificate(FollowedFiles[SSLContext]):
    """`context` is for new connections; open connections keep theirs.

    Each valid pair of files gets a new context, so that an inconsistent pair leaves nothing half loaded.
    """

    def __init__(self, certificate: Path, key: Path, interval: float = INTERVAL) -> None:
        """Raises InvalidFile."""
        paths = (certificate, key)
        super().__init__("TLS certificate and key", paths, lambda *_: server_context(certificate, key), interval)

    @property
    def context(self) -> SSLContext:
        """The newest context."""
        return self.value
