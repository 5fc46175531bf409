"""Follows the file with a service's adapters, so that they come and go without a restart."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from legato_protocol.model_files import adapter_list
from legato_protocol.model_files.adapter_list import AdapterList, InvalidList
from legato_protocol.process.followed_files import INTERVAL, FollowedFiles, InvalidFile


class AdapterFile(FollowedFiles[AdapterList]):
    """The last good list. A process starts without the file, which may come later than itself."""

    def __init__(self, path: Path, interval: float = INTERVAL) -> None:
        self.value = AdapterList()
        with contextlib.suppress(InvalidFile):
            super().__init__("adapters", (path,), _read, interval)
        self.problem = ""  # so that the first poll logs it

    async def follow_changes(self, log: Callable[[int, str], None], changed: Callable[[], None]) -> None:
        """Polls the file until cancelled and calls `changed` after each new list."""
        known = self.value
        while True:
            await self.reload_later(log)
            if self.value is not known:
                known = self.value
                changed()


def _read(content: bytes) -> AdapterList:
    try:
        return adapter_list.read(content)
    except InvalidList as error:
        raise InvalidFile(str(error)) from None
