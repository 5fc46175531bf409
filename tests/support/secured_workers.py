"""What two workers with internal TLS have in a test."""

from pathlib import Path

from legato_engine.transfer.certificates import HandoffCertificates
from legato_engine.transfer.channels import Channels

NAME = "s-workers.demo.svc"


def channels(folder: str | None) -> Channels:
    """Strict, with the files in this folder; without one, there is no TLS."""
    return Channels(HandoffCertificates(Path(folder), NAME), strict=True) if folder else Channels()
