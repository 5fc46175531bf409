"""The certificate that a worker shows to other workers, and the authority by which it knows theirs.

They are the files of internal TLS. The core reads them itself, each time that a connection begins: there are few. The
server follows them too, to tell of those that the core does not take.
"""

from functools import partial
from pathlib import Path
from ssl import CERT_REQUIRED, TLSVersion

from legato_engine.transfer.tls_channel import ALPN, ChannelError, TLSChannel
from legato_protocol import tls_files
from legato_protocol.followed_files import FollowedFiles, InvalidFile
from legato_protocol.tls_files import Contexts


class HandoffCertificates(FollowedFiles[Contexts]):
    """Both contexts show the certificate of `folder` and ask for the peer's, which must be for `name` too."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises InvalidFile, also for a certificate that peers with these files would not accept."""
        self.name = name
        certificate, key, authority = (folder / each for each in tls_files.FILES)
        read = partial(_contexts, name, certificate, key)
        super().__init__("certificates of hand-offs", (certificate, key, authority), read)

    def current(self) -> Contexts:
        """Of what is in the files now, or was in the last good ones."""
        self.look()
        return self.value


def _contexts(name: str, certificate: Path, key: Path, *contents: bytes) -> Contexts:
    found = contexts(certificate, key, contents[-1].decode("latin-1"))
    _check(found, name)
    return found


def contexts(certificate: Path, key: Path, authority: str) -> Contexts:
    """For `TLSChannel`; `authority` is in PEM. Raises InvalidFile."""
    found = Contexts(tls_files.server_context(certificate, key), tls_files.client_context(authority))
    found.server.verify_mode = CERT_REQUIRED
    tls_files.trust(found.server, authority)
    tls_files.show(found.client, certificate, key)
    found.server.num_tickets = 0  # nothing is resumed: each connection shows its certificate
    for context in (found.server, found.client):  # both ends are workers: no older version is needed, nor another use
        context.minimum_version = TLSVersion.TLSv1_3
        context.set_alpn_protocols([ALPN])
    return found


def _check(found: Contexts, name: str) -> None:
    """Shakes hands with itself: what would make every peer refuse this certificate is found here."""
    try:
        one = TLSChannel(found.client, name, connects=True)
        other = TLSChannel(found.server, name, connects=False)
        other.receive(one.outgoing())
        one.receive(other.outgoing())
        other.receive(one.outgoing())
    except (ChannelError, ValueError) as error:  # Python raises the latter for what is no name
        raise InvalidFile(f"other workers would refuse it in hand-offs: {error}") from None
