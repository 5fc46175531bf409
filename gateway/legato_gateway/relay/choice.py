"""One choice of a request: its tokens, their text as far as the client may see it, and the finish reason."""

from itertools import takewhile

from legato_gateway.request import Delta, GenerationRequest, TokenText
from legato_gateway.tokenizer.detokenizer import Detokenizer, StopStrings
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_protocol.sampling.reasoning import ReasoningSpan
from legato_protocol.wire.stream import TokenItem, TokenLogprobs


class _Details:
    """Tokens of a choice as logprobs show them, kept until no stop string can cut them off any more."""

    __slots__ = ("_detokenizer", "_place", "_tokens", "_vocabulary")

    def __init__(self, vocabulary: ModelTokenizer, detokenizer: Detokenizer) -> None:
        self._vocabulary = vocabulary
        self._detokenizer = detokenizer
        self._place = 0
        self._tokens: list[TokenText] = []

    def add(self, tokens: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]) -> None:
        for position, token in enumerate(tokens):
            raw = self._vocabulary.token_bytes(token)
            own = logprobs[position] if position < len(logprobs) else None
            self._tokens.append(TokenText(token, raw.decode(errors="replace"), raw, own, self._place))
            self._place += len(self._detokenizer.push((token,)))

    def take_before(self, place: int) -> tuple[TokenText, ...]:
        """Removes and returns the tokens whose text starts before `place`."""
        taken = tuple(takewhile(lambda token: token.offset < place, self._tokens))
        del self._tokens[: len(taken)]
        return taken

    def take_all(self) -> tuple[TokenText, ...]:
        taken = tuple(self._tokens)
        self._tokens.clear()
        return taken


class OutputChoice:
    """One output of a request. `tokens` includes the token that ended it; `finish` is `stop` or `length`.

    `first_at` and `last_at` are the times of its first and last token, moved on by pauses of the client.
    """

    __slots__ = (
        "_details",
        "_detokenizer",
        "_explains_end",
        "_include_stop",
        "_least",
        "_reasoning",
        "_reported",
        "_said",
        "_special_stops",
        "_stop",
        "_stop_tokens",
        "finish",
        "first_at",
        "index",
        "last_at",
        "peak_blocks",
        "reserved_blocks",
        "tokens",
    )

    def __init__(self, index: int, request: GenerationRequest, vocabulary: ModelTokenizer) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.first_at = self.last_at = 0.0
        self.reserved_blocks = self.peak_blocks = 0  # of KV; the route has the sums over all choices
        shown, marked = request.shown_tokens, request.marked_tokens
        self._detokenizer = vocabulary.detokenizer(shown, marked)
        self._include_stop = request.include_stop
        self._stop = StopStrings(request.stop, request.include_stop) if request.stop else None
        self._stop_tokens = request.own_stop_tokens
        self._special_stops = request.special_stops
        self._least = request.least_tokens
        explains = request.params.logprobs is not None
        self._details = _Details(vocabulary, vocabulary.detokenizer(shown, marked)) if explains else None
        self._reasoning = ReasoningSpan(request.reasoning) if request.reasoning is not None else None
        self._explains_end = request.explains_end
        self._said = 0  # characters
        self._reported = 0  # tokens that a delta had

    @property
    def reasoning_tokens(self) -> int | None:
        """Number of its reasoning tokens, or None if they are not counted."""
        return self._reasoning.count if self._reasoning is not None else None

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds per token after the first, or None without a second token."""
        return (self.last_at - self.first_at) / (len(self.tokens) - 1) if len(self.tokens) > 1 else None

    def exclude_pause(self, since: float, now: float) -> None:
        """Shifts its times by a pause of the client that ended `now`, so that the pause is not measured."""
        still = now - max(since, self.last_at)
        self.first_at, self.last_at = self.first_at + still, self.last_at + still

    def take(self, item: TokenItem) -> Delta | None:
        """Returns the new part of `item`, or None if there is nothing to show. No token may be missing before it."""
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
                tokens, self.finish = shown, "stop"  # tokens after a stop string are surplus
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
        start, self._reported = self._reported, len(self.tokens)
        hit = self._stop.hit if self._stop is not None else None
        if hit is None and self.finish == "stop" and self.tokens:
            hit = self._special_stops.get(self.tokens[-1])
        new = tuple(self.tokens[start:])
        return Delta(self.index, text, details, self.finish, hit, self._stop_token(hit), token_ids=new)

    def cut_off(self) -> Delta:
        """Returns the last delta after the deadline has passed, with the text that was withheld."""
        details = self._details.take_all() if self._details else ()
        new = tuple(self.tokens[self._reported :])
        return Delta(self.index, self._rest(False), details, "length", token_ids=new, late=True)

    def _stop_token(self, hit: str | None) -> int | None:
        """Returns the client's stop token that ended the choice, unless a stop string was complete before."""
        last = self.tokens[-1] if self.tokens else None
        return last if hit is None and self.finish == "stop" and last in self._stop_tokens else None

    def _push_until(self, stop: StopStrings, tokens: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Returns the text up to a stop string, and the tokens up to the one that completes it."""
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
        """Returns the details that can be shown by now: with stop strings, only for tokens whose text is shown."""
        details.add(tokens, logprobs)
        cut = self._stop is not None and self._stop.hit is not None
        if self._stop is None or (self.finish is not None and not cut):
            return details.take_all()
        return details.take_before(self._said)
