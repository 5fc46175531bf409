"""The tokens of a service, which its processes follow through rotations: one to send, and others to accept.

The tokens are files of a folder, one for each key of the service's Secret, and are read again when they change. This
replaces a token without a restart: every process accepts the next token before any process sends it, and the previous
token until no process sends it. A connection is checked once, when it is opened; open connections stay open.
"""

import asyncio
import hmac
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from legato_protocol.security.service_tokens import NEXT, PREVIOUS, TOKEN, token_id, usable

INTERVAL: Final = 1.0  # seconds between polls; a kubelet takes up to two minutes to update a changed Secret
SPREAD: Final = 180.0  # seconds after which every process has read a token that was not announced as the next one
RETENTION: Final = 900.0  # seconds for which the token that such a one replaced is accepted
_LOG_EVERY: Final = 30.0  # seconds between two lines about refusals
_DATA: Final = "..data"  # the link that a kubelet swaps, so that all files of a Secret change together


class NoToken(Exception):
    """The folder has no usable token. The text says why."""


class ServiceTokens:
    """The tokens that this process accepts now.

    With neither a token nor a folder, everybody is accepted: settings then allow loopback only. With a folder without a
    token, nobody is. A token that was not announced as the next one (somebody edited the Secret, or it was lost and
    created again) is known to few processes at first: the replaced token is sent for SPREAD seconds and accepted for
    RETENTION seconds.
    """

    def __init__(
        self, token: str = "", folder: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Reads the folder; without a folder, `token` is the only one and never changes."""
        self._folder = folder
        self._clock = clock
        self._current: tuple[str, ...] = (token,) if token and folder is None else ()  # the one to send comes first
        self._replaced: tuple[str, ...] = ()  # by a token that was not announced
        self._since = 0.0  # time of the replacement
        self.problem = ""  # reason why the folder cannot be read now
        self.reload()

    @property
    def missing(self) -> bool:
        """True if a token is required but not available yet."""
        return self._folder is not None and not self._current

    @property
    def known(self) -> tuple[str, ...]:
        """The accepted tokens; the first is the one to send."""
        age = self._clock() - self._since
        if not self._replaced or age >= RETENTION:
            return self._current
        return (*self._replaced, *self._current) if age < SPREAD else (*self._current, *self._replaced)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the accepted tokens, in the same order."""
        return tuple(token_id(token) for token in self.known)

    def takes(self, authorization: str) -> bool:
        """True if an `Authorization` header's value has an accepted token, or no token is required."""
        known, shown = self.known, authorization.encode()
        if not known:
            return not self.missing
        return any(hmac.compare_digest(shown, f"Bearer {token}".encode()) for token in known)

    def reload(self) -> None:
        """Reads the folder. Keeps the known tokens while it has no usable one."""
        if self._folder is None:
            return
        try:
            self._take(_read(self._folder))
            self.problem = ""
        except NoToken as error:
            self.problem = str(error)

    async def follow(self, changed: Callable[[], None], log: Callable[[str], None]) -> None:
        """Polls the folder until cancelled. Calls `changed` when the tokens or their order change, and `log` when a
        problem begins or ends."""
        known, problem = self.known, ""
        while self._folder is not None:
            if self.problem != problem:
                problem = self.problem
                log(
                    f"the service's tokens stay as they were: {problem}"
                    if problem
                    else "the service's tokens can be read again"
                )
            await asyncio.sleep(INTERVAL)
            self.reload()
            if self.known != known:
                known = self.known
                log(f"the service's tokens are now {', '.join(self.ids)}")
                changed()

    def _take(self, tokens: tuple[str, ...]) -> None:
        if self._current and tokens[0] not in self.known:
            self._replaced, self._since = self.known, self._clock()
        self._replaced = tuple(token for token in self._replaced if token not in tokens)
        self._current = tokens


class PeerToken:
    """The token to send to one peer: the first known one that the peer has not refused."""

    def __init__(self, tokens: ServiceTokens) -> None:
        self._tokens = tokens
        self._refused: set[str] = set()

    def get(self) -> str:
        """Returns the token to send; empty if there are no tokens."""
        known = self._tokens.known
        return next((token for token in known if token not in self._refused), next(iter(known), ""))

    def note_refused(self, token: str) -> bool:
        """Notes that the peer refused a token. True if another one is left to try; otherwise all are tried again."""
        self._refused.add(token)
        if self._refused.issuperset(self._tokens.known):
            self._refused.clear()
            return False
        return True

    def note_accepted(self) -> None:
        """Notes that the peer accepted the token."""
        self._refused.clear()


class RefusalLog:
    """Rate limit for log lines about refused tokens: the first immediately, then a count at most twice a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = float("-inf")
        self._unlogged = 0

    def note(self, what: str) -> str:
        """Counts a refusal and returns the line to log, or "" if the last line is too recent."""
        self._unlogged += 1
        if self._clock() - self._since < _LOG_EVERY:
            return ""
        count, self._unlogged, self._since = self._unlogged, 0, self._clock()
        return f"{what} ({count} refusals since the last line)" if count > 1 else what


def _read(folder: Path) -> tuple[str, ...]:
    """Reads all files as of one moment, even if a kubelet swaps them meanwhile. Raises NoToken."""
    data = folder / _DATA
    try:
        at = data.resolve(strict=True) if data.is_symlink() else folder
        token = (at / TOKEN).read_bytes()
        others = [(at / name).read_bytes() for name in (NEXT, PREVIOUS) if (at / name).exists()]
    except OSError as error:
        raise NoToken(f"{error.filename or folder}: {error.strerror}") from None
    texts = [content.decode("latin-1").strip() for content in (token, *others)]
    if not usable(texts[0]):
        raise NoToken(f"{folder / TOKEN}: expected printable ASCII characters without spaces")
    return tuple(dict.fromkeys(text for text in texts if usable(text)))
