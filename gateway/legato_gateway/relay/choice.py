"""One choice of a request: its tokens, and the text that the client may see of them."""

from itertools import takewhile
from typing import Protocol

from legato_gateway.request import Delta, GenerationRequest, TokenText
from legato_gateway.tokenizer.detokenizer import Detokenizer, StopStrings
from legato_protocol.reasoning import ReasoningSpan
from legato_protocol.stream import TokenItem, TokenLogprobs


class Vocabulary(Protocol):
    """What the relay needs of `tokens.ModelTokenizer`."""

    def detokenizer(self, shown: frozenset[int] = frozenset()) -> Detokenizer:
        """One for a choice, which shows these special tokens too."""

    def token_bytes(self, id: int) -> bytes:
        """The token's own bytes."""


class _Details:
    """The tokens of a choice as logprobs show them, until it is known that no stop string cuts them off."""

    __slots__ = ("_detokenizer", "_place", "_tokens", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, shown: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._detokenizer = vocabulary.detokenizer(shown)
        self._place = 0
        self._tokens: list[TokenText] = []

    def add(self, tokens: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]) -> None:
        for position, token in enumerate(tokens):
            raw = self._vocabulary.token_bytes(token)
            own = logprobs[position] if position < len(logprobs) else None
            self._tokens.append(TokenText(token, raw.decode(errors="replace"), raw, own, self._place))
            self._place += len(self._detokenizer.push((token,)))

    def take_before(self, place: int) -> tuple[TokenText, ...]:
        """Those whose text begins before that place."""
        found = tuple(takewhile(lambda token: token.offset < place, self._tokens))
        del self._tokens[: len(found)]
        return found

    def take_all(self) -> tuple[TokenText, ...]:
        found = tuple(self._tokens)
        self._tokens.clear()
        return found


class Choice:
    """`tokens` is all output so far, the token that ended it included; `finish` is OpenAI's finish_reason. Its first
    and last tokens came at `first_at` and `last_at`, moved on by the time for which the client did not read."""

    __slots__ = (
        "_details",
        "_detokenizer",
        "_explains_end",
        "_include_stop",
        "_least",
        "_reasoning",
        "_said",
        "_special_stops",
        "_stop",
        "_stop_tokens",
        "_told",
        "finish",
        "first_at",
        "index",
        "last_at",
        "peak_blocks",
        "reserved_blocks",
        "tokens",
    )

    def __init__(self, index: int, request: GenerationRequest, vocabulary: Vocabulary) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.first_at = self.last_at = 0.0
        self.reserved_blocks = self.peak_blocks = 0  # of KV; the route has the sums over all choices
        self._detokenizer = vocabulary.detokenizer(request.shown_tokens)
        self._include_stop = request.include_stop
        self._stop = StopStrings(request.stop, request.include_stop) if request.stop else None
        self._stop_tokens = request.own_stop_tokens
        self._special_stops = request.special_stops
        self._least = request.least_tokens
        self._details = _Details(vocabulary, request.shown_tokens) if request.params.logprobs is not None else None
        self._reasoning = ReasoningSpan(request.reasoning) if request.reasoning is not None else None
        self._explains_end = request.explains_end
        self._said = 0  # characters
        self._told = 0  # tokens that a delta had

    @property
    def reasoning_tokens(self) -> int | None:
        """How many of its tokens are reasoning; None where they are not counted."""
        return self._reasoning.count if self._reasoning is not None else None

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds, of all but the first; None where there are no others."""
        return (self.last_at - self.first_at) / (len(self.tokens) - 1) if len(self.tokens) > 1 else None

    def stood_still(self, since: float, now: float) -> None:
        """The client did not read from then on until now."""
        still = now - max(since, self.last_at)
        self.first_at, self.last_at = self.first_at + still, self.last_at + still

    def take(self, item: TokenItem) -> Delta | None:
        """What is new in `item`, whose first token is a known one or the next. None when there is nothing to show."""
        known = len(self.tokens) - item.index
        tokens = item.token_ids[known:]
        if not tokens and (item.finish is None or known > len(item.token_ids)):
            return None
        shown = tokens[:-1] if item.finish == "stop" and not self._include_stop else tokens
        if self._stop is None:
            text = self._detokenizer.push(shown)
        else:
            text, shown = self._push_until(self._stop, shown)
            if self._stop.hit is not None:
                tokens, self.finish = shown, "stop"  # tokens after a stop string were never asked for
        if item.finish is not None and self.finish is None:
            text += self._rest(len(self.tokens) + len(tokens) > self._least)
            self.finish = item.finish if self._stop is None or self._stop.hit is None else "stop"
        self.tokens.extend(tokens)
        if self._reasoning is not None:
            self._reasoning.follow(shown)
        self._said += len(text)
        if self._explains_end and item.finish == "stop" and self.finish == "stop" and len(shown) < len(tokens):
            shown = tokens
        details = self._explain(self._details, shown, item.logprobs[known:]) if self._details else ()
        if not text and not details and self.finish is None:
            return None
        told, self._told = self._told, len(self.tokens)
        hit = self._stop.hit if self._stop is not None else None
        if hit is None and self.finish == "stop" and self.tokens:
            hit = self._special_stops.get(self.tokens[-1])
        new = tuple(self.tokens[told:])
        return Delta(self.index, text, details, self.finish, hit, self._stop_token(hit), token_ids=new)

    def cut_off(self) -> Delta:
        """Returns the last delta of a choice whose deadline has passed, with the text that was held back."""
        details = self._details.take_all() if self._details else ()
        new = tuple(self.tokens[self._told :])
        return Delta(self.index, self._rest(False), details, "length", token_ids=new, late=True)

    def _stop_token(self, hit: str | None) -> int | None:
        """The client's own stop token that ended it; a stop string that was complete before is what did."""
        last = self.tokens[-1] if self.tokens else None
        return last if hit is None and self.finish == "stop" and last in self._stop_tokens else None

    def _push_until(self, stop: StopStrings, tokens: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Text up to a stop string, and the tokens up to the one that completes it."""
        text = ""
        for count, token in enumerate(tokens, 1):
            text += stop.push(self._detokenizer.push((token,)), len(self.tokens) + count > self._least)
            if stop.hit is not None:
                return text, tokens[:count]
        return text, tokens

    def _rest(self, ends: bool) -> str:
        rest = self._detokenizer.flush()
        if self._stop is None:
            return rest
        return self._stop.push(rest, ends) + self._stop.flush()

    def _explain(
        self, details: _Details, tokens: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]
    ) -> tuple[TokenText, ...]:
        """What can be told of tokens by now: with stop strings, only of those whose text is shown."""
        details.add(tokens, logprobs)
        cut = self._stop is not None and self._stop.hit is not None
        if self._stop is None or (self.finish is not None and not cut):
            return details.take_all()
        return details.take_before(self._said)
