"""Logprobs of a request's prompt from workers: stored packed, each once, from whichever attempt sent it first."""

from collections.abc import Iterator, Sequence

from legato_protocol.wire.packed_logprobs import PackedLogprobs, PromptToken


class PromptScores:
    """Logprobs of `prompt`, with `alternatives`. Iterating yields each known token from the second on, in order."""

    __slots__ = ("_alternatives", "_known", "_pieces", "prompt")

    def __init__(self, prompt: Sequence[int], alternatives: int) -> None:
        self.prompt = prompt
        self._alternatives = alternatives
        self._known = 1  # leading tokens of the prompt; the first has none
        self._pieces: list[PackedLogprobs] = []

    def __iter__(self) -> Iterator[PromptToken]:
        for piece in self._pieces:
            yield from piece

    @property
    def complete(self) -> bool:
        return self._known >= len(self.prompt)

    def take(self, start: int, piece: PackedLogprobs) -> str:
        """Adds the logprobs of tokens from `start` on. Returns their fault, or an empty text."""
        if piece.alternatives != self._alternatives:
            return f"logprobs with {piece.alternatives} alternatives, not {self._alternatives}"
        if fault := piece.fault():
            return fault
        if start > self._known:
            return f"no logprobs of tokens {self._known} to {start - 1} of its prompt"
        if start + len(piece) > len(self.prompt):
            return f"logprobs of {start + len(piece)} tokens of a prompt of {len(self.prompt)}"
        if start + len(piece) > self._known:
            self._pieces.append(piece.after(self._known - start))
            self._known = start + len(piece)
        return ""
