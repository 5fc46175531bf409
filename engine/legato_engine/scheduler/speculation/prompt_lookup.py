"""PromptLookup: drafts are what followed the same tokens earlier in the sequence (A. Saxena, Prompt Lookup Decoding,
2023)."""

from weakref import WeakKeyDictionary

from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.speculation.drafter import NO_DRAFT, Draft
from legato_engine.scheduler.speculation.repeated_text import RepeatedText


class PromptLookup:
    """Implements `Drafter`."""

    def __init__(self) -> None:
        self._texts: WeakKeyDictionary[Request, RepeatedText] = WeakKeyDictionary()

    def propose(self, request: Request, most: int) -> Draft:
        text = self._texts.get(request)
        if text is None:
            text = self._texts[request] = RepeatedText(len(request.tokens))
        read = text.follow(request.tokens, request.prompt_len)
        return text.draft(request.tokens, most) if read and most > 0 else NO_DRAFT
