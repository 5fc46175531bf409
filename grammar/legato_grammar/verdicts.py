"""A cache of valid grammars: clients send the same grammars with each request."""

from collections.abc import Callable
from hashlib import sha256
from threading import Lock

MOST_KEPT = 1024  # digests; the oldest is forgotten first


class Verdicts:
    """Remembers grammars that `judge`, called with a grammar's kind and source, did not refuse with InvalidGrammar.

    Safe to use from several threads, which may then judge the same grammar concurrently."""

    def __init__(self, judge: Callable[[str, str], None]) -> None:
        self._judge = judge
        self._good: dict[bytes, None] = {}
        self._changing = Lock()

    def check(self, kind: str, source: str) -> None:
        """Judges a grammar unless it is known to be valid. Raises InvalidGrammar."""
        digest = sha256(f"{kind}\0{source}".encode(errors="surrogatepass")).digest()
        if digest in self._good:
            return
        self._judge(kind, source)
        with self._changing:
            self._good[digest] = None
            if len(self._good) > MOST_KEPT:
                del self._good[next(iter(self._good))]
