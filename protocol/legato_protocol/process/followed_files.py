"""Files that are read again when they change, so that their content takes effect without a restart."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
INTERVAL = 1.0  # seconds; a kubelet takes up to a minute to bring a changed Secret


class InvalidFile(Exception):
    """A file's content is invalid. The text names the problem."""


class FollowedFiles(Generic[T]):
    """Files whose parsed content is `value`. While a file is missing or invalid, `value` stays and `problem` says why.

    `read` parses the contents of all files and raises InvalidFile.
    """

    def __init__(self, name: str, paths: Sequence[Path], read: Callable[..., T], interval: float = INTERVAL) -> None:
        """Reads the files. Raises InvalidFile: a process does not start without valid files."""
        self._name = name
        self._paths = tuple(paths)
        self._read = read
        self._interval = interval
        self._contents: list[bytes] = []
        self.problem = ""
        self.reload()
        if self.problem:
            raise InvalidFile(self.problem)

    value: T

    async def follow(self, log: Callable[[int, str], None]) -> None:
        """Polls the files until cancelled. `log` gets a level of `logging` and a line."""
        while True:
            await self.reload_later(log)

    async def reload_later(self, log: Callable[[int, str], None]) -> None:
        """Waits for the next poll and reads the files."""
        await asyncio.sleep(self._interval)
        before = self.problem
        self.reload()
        if self.problem and self.problem != before:
            log(logging.ERROR, f"{self._name} stay as they were: {self.problem}")
        elif before and not self.problem:
            log(logging.INFO, f"{self._name} are read again from {self._paths[0]}")

    def reload(self) -> None:
        """Reads the files now."""
        path = self._paths[0]
        try:
            contents = []
            for path in self._paths:
                contents.append(path.read_bytes())
            if contents != self._contents or self.problem:
                self.value = self._read(*contents)
                self._contents = contents
            self.problem = ""
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"
        except InvalidFile as error:
            self.problem = f"{self._paths[0]}: {error}"
