"""The methods that draft tokens, by the names that settings use."""

from collections.abc import Callable
from typing import Final

from legato_engine.scheduler.speculation.drafter import Drafter
from legato_engine.scheduler.speculation.prompt_lookup import PromptLookup

METHODS: Final[dict[str, Callable[[], Drafter]]] = {"PromptLookup": PromptLookup}


def make(method: str) -> Drafter | None:
    """A drafter of this method; None for `None`, the method that drafts nothing."""
    return None if method == "None" else METHODS[method]()
