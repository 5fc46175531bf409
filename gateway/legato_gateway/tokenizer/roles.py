"""Messages in the order of roles that strict chat templates ask for: a system message, then turns that alternate."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

SYSTEM: Final = "system"
USER: Final = "user"


def alternating(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the messages with neighbours of the system and of the user merged. Messages of the system that come later
    are the user's: agents send such ones, and several messages of the user in a row."""
    found: list[Mapping[str, Any]] = []
    for message in messages:
        begins = not found or (len(found) == 1 and found[0]["role"] == SYSTEM)
        role = USER if message["role"] == SYSTEM and not begins else message["role"]
        if found and role in (SYSTEM, USER) and found[-1]["role"] == role:
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n{message['content']}"}
        else:
            found.append({**message, "role": role})
    return found
