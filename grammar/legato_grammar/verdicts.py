"""Grammars that were found good, remembered: a client sends the same ones with each of its requests."""

from collections.abc import Callable
from hashlib import sha256
from threading import Lock

MOST_KEPT = 1024  # digests; the oldest is forgotten first


class Verdicts:
    """`judge` raises InvalidGrammar for a grammar's kind and source, or takes them. May be asked from several threads
    at once: each then judges by itself."""

    def __init__(self, judge: Callable[[str, str], None]) -> None:
        self._judge = judge
        self._good: dict[bytes, None] = {}
        self._changing = Lock()

    def check(self, kind: str, source: str) -> None:
        """Raises InvalidGrammar."""
        digest = sha256(f"{kind}\0{source}".encode(errors="surrogatepass")).digest()
        if digest in self._good:
            return
        self._judge(kind, source)
        with self._changing:
            self._good[digest] = None
            if len(self._good) > MOST_KEPT:
                del self._good[next(iter(self._good))]
