"""The tokens of a service, as its processes know them: which one to show, and which to take from others.

They lie in a folder, a file for each key of the service's Secret, and are read again when they change. So a token is
replaced without a restart: everybody takes the next one before anybody shows it, and the previous one until nobody
shows it any more. A connection is asked for a token once, when it is opened: those that are open stay open.
"""

import asyncio
import hmac
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from legato_protocol.service_tokens import NEXT, PREVIOUS, TOKEN, token_id, usable

INTERVAL: Final = 1.0  # seconds between two looks; a kubelet takes up to two minutes to bring a changed Secret
SPREAD: Final = 180.0  # seconds after which everybody has read a token that came without notice
RETENTION: Final = 900.0  # seconds for which the one that it replaced is taken
_LOG_EVERY: Final = 30.0  # seconds between two lines about refusals
_DATA: Final = "..data"  # what a kubelet swaps, so that all files of a Secret change at once


class NoToken(Exception):
    """There is none in the folder. The text says why."""


class ServiceTokens:
    """What this process knows now. Where there is neither a token nor a folder, everybody is let in: settings then
    allow loopback only. A folder without a token lets nobody in.

    A token that replaces the one in use without having been announced as the next (somebody edited the Secret, or it
    was lost and made anew) is known to few at first: until it has spread, the old one is shown, and it is taken for
    longer than that.
    """

    def __init__(
        self, token: str = "", folder: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Those in the folder; without one, `token` alone and for good."""
        self._folder = folder
        self._clock = clock
        self._filed: tuple[str, ...] = (token,) if token and folder is None else ()  # the one to show, others to take
        self._kept: tuple[str, ...] = ()
        self._since = 0.0  # when these were replaced
        self.problem = ""  # why the folder cannot be read now
        self.look()

    @property
    def missing(self) -> bool:
        """Whether one is needed, and not there yet."""
        return self._folder is not None and not self._filed

    @property
    def known(self) -> tuple[str, ...]:
        """All that are taken; the first is the one to show."""
        age = self._clock() - self._since
        if not self._kept or age >= RETENTION:
            return self._filed
        order = (*self._kept, *self._filed) if age < SPREAD else (*self._filed, *self._kept)
        return order

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of those, in this order."""
        return tuple(token_id(token) for token in self.known)

    def takes(self, authorization: str) -> bool:
        """Whether the value of an `Authorization` header holds one of them, or none is needed."""
        known, shown = self.known, authorization.encode()
        if not known:
            return not self.missing
        return any(hmac.compare_digest(shown, f"Bearer {token}".encode()) for token in known)

    def look(self) -> None:
        """Reads the folder. While there is no token in it, those that were known stay."""
        if self._folder is None:
            return
        try:
            self._take(_read(self._folder))
            self.problem = ""
        except NoToken as error:
            self.problem = str(error)

    async def follow(self, changed: Callable[[], None], log: Callable[[str], None]) -> None:
        """Takes in what the folder says from here on, until cancelled. `changed` is told of other tokens, or another
        order of them; `log`, of problems and their end."""
        known, problem = self.known, ""
        while self._folder is not None:
            if self.problem != problem:
                problem = self.problem
                log(f"the service's tokens stay as they were: {problem}" if problem else "the tokens are read again")
            await asyncio.sleep(INTERVAL)
            self.look()
            if self.known != known:
                known = self.known
                log(f"the service's tokens are now {', '.join(self.ids)}")
                changed()

    def _take(self, found: tuple[str, ...]) -> None:
        if self._filed and found[0] not in self.known:
            self._kept, self._since = self.known, self._clock()
        self._kept = tuple(token for token in self._kept if token not in found)
        self._filed = found


class ShownToken:
    """The one to show to somebody: the first, unless that was refused there."""

    def __init__(self, tokens: ServiceTokens) -> None:
        self._tokens = tokens
        self._refused: set[str] = set()

    def get(self) -> str:
        """Empty where there is none."""
        known = self._tokens.known
        return next((token for token in known if token not in self._refused), next(iter(known), ""))

    def refused(self, token: str) -> bool:
        """Whether there is another one to show; if not, all are tried anew."""
        self._refused.add(token)
        if self._refused.issuperset(self._tokens.known):
            self._refused.clear()
            return False
        return True

    def taken(self) -> None:
        """The one that was shown was right."""
        self._refused.clear()


class RefusalLog:
    """Tells of refused tokens in few lines: at once, and from then on how many there were, twice a minute at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = float("-inf")
        self._untold = 0

    def note(self, what: str) -> str:
        """The line to log; empty while it is not time for one."""
        self._untold += 1
        if self._clock() - self._since < _LOG_EVERY:
            return ""
        count, self._untold, self._since = self._untold, 0, self._clock()
        return f"{what} ({count} such since the last line)" if count > 1 else what


def _read(folder: Path) -> tuple[str, ...]:
    """Of one moment: a kubelet may swap the files meanwhile. Raises NoToken."""
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
