"""Manifests in files, as text: whatever the locale, from a path or from standard input."""

import sys
from pathlib import Path

from legato_operator.errors import ManifestError

STANDARD_INPUT = "-"


def read_text(path: Path) -> str:
    """The file's text; that of standard input for `-`. Raises ManifestError."""
    try:
        content = sys.stdin.buffer.read() if str(path) == STANDARD_INPUT else path.read_bytes()
        return content.decode("utf-8-sig")  # some editors write a mark
    except OSError as error:
        raise ManifestError([("", error.strerror or str(error))]) from None
    except UnicodeDecodeError as error:
        raise ManifestError([("", f"not UTF-8 text: {error.reason}")]) from None
