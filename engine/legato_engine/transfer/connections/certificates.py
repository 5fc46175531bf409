"""The certificate that a worker shows to other workers, and the authority that signs theirs.

Both are files of internal TLS. The core checks them for changes at each new connection. The server also follows them,
to report unusable files.
"""

from functools import partial
from pathlib import Path
from ssl import CERT_REQUIRED, TLSVersion

from legato_engine.transfer.connections.tls_channel import ALPN, ChannelError, TLSChannel
from legato_protocol.process.followed_files import FollowedFiles, InvalidFile
from legato_protocol.security import tls_files
from legato_protocol.security.tls_files import Contexts


class HandoffCertificates(FollowedFiles[Contexts]):
    """Contexts that present the certificate in `folder`, and require a peer with one that is issued for `name`, too."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises InvalidFile, also for a certificate that peers with the same files would not accept."""
        self.name = name
        certificate, key, authority = (folder / each for each in tls_files.FILES)
        read = partial(_contexts, name, certificate, key)
        super().__init__("certificates of hand-offs", (certificate, key, authority), read)

    def current(self) -> Contexts:
        """Contexts from the current files, or from the last valid ones."""
        self.reload()
        return self.value


def _contexts(name: str, certificate: Path, key: Path, *contents: bytes) -> Contexts:
    made = contexts(certificate, key, contents[-1].decode("latin-1"))
    _check(made, name)
    return made


def contexts(certificate: Path, key: Path, authority: str) -> Contexts:
    """Contexts for `TLSChannel`; `authority` is in PEM. Raises InvalidFile."""
    made = Contexts(tls_files.server_context(certificate, key), tls_files.client_context(authority))
    made.server.verify_mode = CERT_REQUIRED
    tls_files.trust(made.server, authority)
    tls_files.show(made.client, certificate, key)
    made.server.num_tickets = 0  # no resumption: each connection shows its certificate
    for context in (made.server, made.client):  # both ends are workers, which need no older version or other protocol
        context.minimum_version = TLSVersion.TLSv1_3
        context.set_alpn_protocols([ALPN])
    return made


def _check(made: Contexts, name: str) -> None:
    """Performs a handshake between both contexts, to detect a certificate that every peer would refuse."""
    try:
        one = TLSChannel(made.client, name, connects=True)
        other = TLSChannel(made.server, name, connects=False)
        other.receive(one.outgoing())
        one.receive(other.outgoing())
        other.receive(one.outgoing())
    except (ChannelError, ValueError) as error:  # Python raises ValueError for an invalid name
        raise InvalidFile(f"other workers would refuse it in hand-offs: {error}") from None
