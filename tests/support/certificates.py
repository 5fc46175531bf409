"""Certificates of an authority of one's own, made by the `openssl` program."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import required

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


@dataclass(frozen=True)
class TLSFiles:
    """A certificate, its key, and the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path

    def install(self, folder: Path) -> "TLSFiles":
        """As `tls.crt`, `tls.key` and `ca.crt` there; each changes at once."""
        made = TLSFiles(folder / "tls.crt", folder / "tls.key", self.authority)
        authority = folder / "ca.crt"
        for source, target in ((self.authority, authority), (self.certificate, made.certificate), (self.key, made.key)):
            draft = folder / f".{target.name}"
            draft.write_bytes(source.read_bytes())
            draft.replace(target)
        return made


def make(folder: Path, password: str = "", names: str = NAMES, of: TLSFiles | None = None, days: int = 30) -> TLSFiles:
    """Makes files for this machine, by a new authority or that `of` others. With a password, the key is encrypted.

    `names` may have more lines, for further extensions; with days below 0, it has expired."""
    if shutil.which("openssl") is None:
        required.missing("no openssl on the PATH")
    folder.mkdir()
    authority = of.authority if of else folder / "ca.crt"
    authority_key = authority.with_suffix(".key")
    certificate, key, asked = folder / "own.crt", folder / "own.key", folder / "own.csr"
    if of is None:
        own = ("-noenc", "-subj", "/CN=Test CA", "-out", authority, "-keyout", authority_key)
        _openssl("req", "-x509", *_NEW_KEY, *own)
    hidden = ("-passout", f"pass:{password}") if password else ("-noenc",)
    extensions = [word for line in names.splitlines() for word in ("-addext", line)]
    _openssl("req", *_NEW_KEY, *hidden, "-subj", "/CN=localhost", *extensions, "-out", asked, "-keyout", key)
    signed = ("-CA", authority, "-CAkey", authority_key, "-copy_extensions", "copy", "-days", days)
    _openssl("x509", "-req", "-in", asked, *signed, "-out", certificate)
    return TLSFiles(certificate, key, authority)


def _openssl(*arguments: "str | Path | int") -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
