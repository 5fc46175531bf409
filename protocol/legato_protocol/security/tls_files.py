"""TLS contexts from certificate files: of one port, or of all processes of a service (`InternalTLS`)."""

import re
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Final

from legato_protocol import names
from legato_protocol.process.followed_files import INTERVAL, FollowedFiles, InvalidFile

_CERTIFICATES: Final = re.compile(r"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----.*?-----END \1-----", re.DOTALL)
FILES: Final = (names.TLS_CERTIFICATE, names.TLS_KEY, names.TLS_AUTHORITY)


@dataclass(frozen=True, slots=True)
class Contexts:
    """TLS contexts: `server` presents the certificate, `client` trusts the authority and checks the server's name."""

    server: SSLContext
    client: SSLContext


class InternalTLS(FollowedFiles[Contexts]):
    """The folder of the Secret that all processes of a service share: certificate, key, and the signing authority.

    Pods have no lasting names, so all of them present one certificate, which is checked for `name`. Open connections
    keep the contexts they began with.
    """

    def __init__(self, folder: Path, name: str = "", interval: float = INTERVAL) -> None:
        """Reads the files. Raises InvalidFile. Only processes that connect to others need the name."""
        self.name = name
        certificate, key, authority = (folder / each for each in FILES)
        read = partial(_contexts, certificate, key, authority)
        super().__init__("files of internal TLS", (certificate, key, authority), read, interval)

    @property
    def context(self) -> SSLContext:
        """The context for accepted connections."""
        return self.value.server


def server_context(certificate: Path, key: Path) -> SSLContext:
    """Returns a server's context for TLS 1.2 or later. Raises InvalidFile."""
    context = SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # it costs the server more than the client
    context.set_alpn_protocols(["http/1.1"])
    show(context, certificate, key)
    return context


def client_context(authority: str) -> SSLContext:
    """Returns a client's context that trusts only these certificates in PEM; comments are ignored. Raises
    InvalidFile."""
    context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust(context, authority)
    return context


def show(context: SSLContext, certificate: Path, key: Path) -> None:
    """Makes a context present this certificate to peers. Raises InvalidFile."""
    try:
        context.load_cert_chain(certificate, key, password="")  # an encrypted key is refused, and not asked for
    except (ssl.SSLError, OSError) as error:
        raise InvalidFile(f"no certificate in PEM whose private key is in {key}: {_why(error)}") from None


def trust(context: SSLContext, authority: str) -> None:
    """Makes a context accept peers whose certificate one of these authorities signed. Raises InvalidFile."""
    blocks = [match.group() for match in _CERTIFICATES.finditer(authority)]
    try:
        context.load_verify_locations(cadata="\n".join(blocks) or authority)
    except TypeError:
        raise InvalidFile("no certificates in PEM: they have bytes that are not ASCII") from None
    except (ssl.SSLError, ValueError) as error:
        why = _why(error) if isinstance(error, ssl.SSLError) else str(error)
        raise InvalidFile(f"no certificates in PEM: {why}") from None


def _contexts(certificate: Path, key: Path, authority: Path, *contents: bytes) -> Contexts:
    server = server_context(certificate, key)
    try:
        return Contexts(server, client_context(contents[-1].decode("latin-1")))
    except InvalidFile as error:
        raise InvalidFile(f"{authority}: {error}") from None


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or "not understood"
    return str(reason).lower().replace("_", " ")
