"""Orders messages by role as strict chat templates require: a system message, then turns that alternate."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

SYSTEM: Final = "system"
USER: Final = "user"


def alternating(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Merges consecutive messages of the system and of the user, which agents send.

    Later system messages become the user's.
    """
    turns: list[Mapping[str, Any]] = []
    for message in messages:
        begins = not turns or (len(turns) == 1 and turns[0]["role"] == SYSTEM)
        role = USER if message["role"] == SYSTEM and not begins else message["role"]
        if turns and role in (SYSTEM, USER) and turns[-1]["role"] == role:
            turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}\n{message['content']}"}
        else:
            turns.append({**message, "role": role})
    return turns
