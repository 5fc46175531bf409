"""Follows the file with API keys, so that they change without a restart."""

from pathlib import Path

from legato_gateway.clients import api_keys
from legato_gateway.clients.api_keys import ClientKeys
from legato_protocol.process.followed_files import INTERVAL, FollowedFiles


class KeyFile(FollowedFiles[ClientKeys]):
    """`keys` come from the last good file."""

    def __init__(self, path: Path, interval: float = INTERVAL) -> None:
        """Raises InvalidFile: a gateway does not start without the keys that it must require."""
        super().__init__("API keys", (path,), api_keys.parse, interval)

    @property
    def keys(self) -> ClientKeys:
        """The current keys."""
        return self.value
