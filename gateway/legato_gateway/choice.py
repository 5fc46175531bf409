"""One choice of a request: its tokens, and the text that the client may see of them."""

from typing import Protocol

from legato_gateway.detokenizer import Detokenizer, StopStrings
from legato_gateway.request import Delta, GenerationRequest, TokenText
from legato_protocol.stream import TokenItem, TokenLogprobs


class Vocabulary(Protocol):
    """What the relay needs of `tokens.Tokens`."""

    def detokenizer(self) -> Detokenizer:
        """One for a choice."""

    def token_bytes(self, id: int) -> bytes:
        """The token's own bytes."""


class Choice:
    """`tokens` is all output so far, the token that ended it included; `finish` is OpenAI's finish_reason."""

    __slots__ = ("_detokenizer", "_stop", "_vocabulary", "finish", "index", "tokens")

    def __init__(self, index: int, request: GenerationRequest, vocabulary: Vocabulary) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.finish: str | None = None
        self._detokenizer = vocabulary.detokenizer()
        self._stop = StopStrings(request.stop) if request.stop else None
        self._vocabulary = vocabulary if request.params.logprobs is not None else None

    def take(self, item: TokenItem) -> Delta | None:
        """What is new in `item`, whose first token is a known one or the next. None when there is nothing to show."""
        known = len(self.tokens) - item.index
        tokens = item.token_ids[known:] if known else item.token_ids
        if not tokens and (item.finish is None or known > len(item.token_ids)):
            return None
        shown = tokens[:-1] if item.finish == "stop" else tokens
        if self._stop is None:
            text = self._detokenizer.push(shown)
        else:
            text, shown = self._push_until(self._stop, shown)
            if self._stop.hit is not None:
                tokens, self.finish = shown, "stop"  # tokens after a stop string were never asked for
        if item.finish is not None and self.finish is None:
            text += self._rest()
            self.finish = item.finish if self._stop is None or self._stop.hit is None else "stop"
        self.tokens.extend(tokens)
        details = self._details(self._vocabulary, shown, item.logprobs[known:]) if self._vocabulary else ()
        if not text and not details and self.finish is None:
            return None
        return Delta(self.index, text, details, self.finish)

    def _push_until(self, stop: StopStrings, tokens: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Text up to a stop string, and the tokens up to the one that completes it."""
        text = ""
        for count, token in enumerate(tokens, 1):
            text += stop.push(self._detokenizer.push((token,)))
            if stop.hit is not None:
                return text, tokens[:count]
        return text, tokens

    def _rest(self) -> str:
        rest = self._detokenizer.flush()
        if self._stop is None:
            return rest
        return self._stop.push(rest) + self._stop.flush()

    @staticmethod
    def _details(
        vocabulary: Vocabulary, tokens: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]
    ) -> tuple[TokenText, ...]:
        details = []
        for position, token in enumerate(tokens):
            raw = vocabulary.token_bytes(token)
            own = logprobs[position] if position < len(logprobs) else None
            details.append(TokenText(token, raw.decode(errors="replace"), raw, own))
        return tuple(details)
