"""The served model's support for harmony: its special tokens, its stops, and the place where an answer begins."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from legato_gateway.parsers.harmony import tokens as harmony
from legato_protocol.sampling.reasoning import ReasoningTokens

_NAME: Final = re.compile(r"gpt[-_]?oss", re.IGNORECASE)
_LONGEST_HEADER: Final = 64  # tokens


class HarmonyTokenizer(Protocol):
    """The part of a tokenizer that is used here."""

    def encode(self, text: str, add_special: bool, most: int) -> list[int]: ...

    def special_ids(self, texts: Collection[str]) -> frozenset[int]: ...

    def token_bytes(self, id: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class HarmonyTokens:
    """Ids of the special tokens, in the order of `harmony.ALL`, and of the header of reasoning."""

    ids: tuple[int, ...]
    analysis: tuple[int, ...]

    @property
    def marked(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(self.ids)

    def id(self, token: str) -> int:
        """Returns the id of a special token."""
        return self.ids[harmony.ALL.index(token)]

    def ends(self, declared: Sequence[int]) -> tuple[int, ...]:
        """Returns the tokens that end an answer of a model that declares these.

        Harmony's stops do even if they are not declared. `<|end|>` only ends a message.
        """
        ends = {*declared, *(self.id(stop) for stop in harmony.STOPS)}
        return tuple(sorted(ends - {self.id(harmony.END)}))

    def reasoning(self, header: str) -> ReasoningTokens:
        """Returns the tokens around reasoning in an answer that continues the message with this header."""
        inside = header.endswith(harmony.marked(f"{harmony.ANALYSIS}{harmony.MESSAGE}"))
        before = (self.id(harmony.CHANNEL), *self.analysis)
        return ReasoningTokens(self.id(harmony.MESSAGE), self.id(harmony.END), inside, header=before)

    def header(self, prompt: Sequence[int], tokens: HarmonyTokenizer) -> str:
        """Returns the header of the message in which a prompt ends, for the parser; empty if it is only a role.

        The header is complete if the prompt ends in the message's text.
        """
        ends, message = {self.id(token) for token in (harmony.END, *harmony.STOPS)}, self.id(harmony.MESSAGE)
        start, at = self.id(harmony.START), len(prompt)
        while at and prompt[at - 1] not in ends and prompt[at - 1] != start:
            at -= 1
        if not at or prompt[at - 1] in ends:
            return ""
        header = list(prompt[at : at + _LONGEST_HEADER])
        if message in header:
            header = header[: header.index(message) + 1]
        text = b"".join(tokens.token_bytes(id) for id in header).decode(errors="replace")
        return "" if text.strip() == harmony.ASSISTANT else harmony.marked(text)


def for_model(tokens: HarmonyTokenizer) -> HarmonyTokens | None:
    """Returns the special tokens of harmony, or None if the model lacks one of them."""
    ids = [tuple(tokens.special_ids((token,))) for token in harmony.ALL]
    if not all(len(same) == 1 for same in ids):
        return None
    analysis = tokens.encode(harmony.ANALYSIS, False, len(harmony.ANALYSIS))
    return HarmonyTokens(tuple(id for (id,) in ids), tuple(analysis))


@dataclass(frozen=True, slots=True)
class HarmonyChoice:
    """The settings and the properties of a model that decide whether its format is harmony."""

    tool_calls: str
    reasoning: str
    template: str | None
    name: str

    @property
    def reason(self) -> str:
        """The reason why the model's format is harmony; empty if it is another, or the settings name another."""
        given = {"toolCallParser": self.tool_calls, "reasoningParser": self.reasoning}
        if not set(given.values()) <= {harmony.FAMILY, "Auto", "Off"} or set(given.values()) == {"Off"}:
            return ""
        if named := next((key for key, value in given.items() if value == harmony.FAMILY), None):
            return f"gateway.{named} names it"
        if self.template is not None and harmony.in_template(self.template):
            return "the chat template shows it"
        return "the model's name" if _NAME.search(self.name) else ""
