"""Places where a text can be cut so that its parts have the tokens of the whole, and where that is proved.

Tokenizers find added tokens, normalize the texts between them, split these into words and merge each word's bytes. A
cut is safe before an added token, and between two characters that no step joins or looks across. These are pairs of a
printable ASCII character and a space or line break, each proved for every step of the tokenizer at hand.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, product
from typing import Any, Final

from tokenizers import Tokenizer, models

from legato_gateway.tokenizer import plain_text
from legato_gateway.tokenizer.pair_analysis import NotUnderstood, Pattern

_BEFORE: Final = tuple(map(chr, range(0x21, 0x7F)))
_AFTER: Final = (" ", "\n")
_GPT_2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BYTE_CHARS: Final = {" ": "Ġ", "\n": "Ċ"}  # in the alphabet of byte-level tokens
_COMPOSING: Final = ("NFC", "NFD", "NFKC", "NFKD")  # ASCII composes with nothing before it

Splits = Callable[[str, str], bool]


class SafeCuts:
    """The safe cuts of one tokenizer. Immutable."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = list(tokenizer.get_added_tokens_decoder().values())
        marks = [token for token in added if not token.normalized]
        whole_words = any(token.single_word for token in added)  # these look at their neighbours
        self._strips = frozenset(token.content for token in marks if token.lstrip)
        self._marks = _any_of([token.content for token in marks]) if marks and not whole_words else None
        self.pairs: Mapping[str, str] = {} if whole_words else _pairs(tokenizer)
        ways = [f"[{re.escape(befores)}](?={after})" for after, befores in self.pairs.items()]
        self._pair = re.compile("|".join(ways)) if ways else None

    def blocks(self, text: str, size: int) -> Iterator[str]:
        """Yields the text in blocks, each up to the first cut after `size` characters.

        Blocks depend on no text after them, so texts that start alike have the same first blocks.
        """
        start, marks = 0, self._mark_starts(text)
        mark, pairs = next(marks, len(text)), self._pair
        while start + size < len(text):
            least = start + size
            while mark < least:
                mark = next(marks, len(text))
            match = pairs.search(text, least - 1, mark) if pairs is not None else None
            cut = match.end() if match else mark
            if match is None and mark == len(text):
                break
            yield text[start:cut]
            start = cut
        yield text[start:]

    def _mark_starts(self, text: str) -> Iterator[int]:
        """Yields where added tokens start, except for those that take the space before them."""
        if self._marks is not None:
            for match in self._marks.finditer(text):
                if match[0] not in self._strips:
                    yield match.start()


def _any_of(texts: list[str]) -> re.Pattern[str]:
    return re.compile(plain_text.longest_of(texts))


def _pairs(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the characters after which each of `_AFTER` starts a new part."""
    try:
        return _proved_pairs(tokenizer)
    except NotUnderstood:
        return {}


def _proved_pairs(tokenizer: Tokenizer) -> dict[str, str]:
    image, apart = _images(_state(tokenizer.normalizer)), _apart(tokenizer)
    stages = [Pattern(source) for source in _stages(_state(tokenizer.pre_tokenizer))]
    merged: Splits | None = None
    pairs: dict[str, str] = {}
    for before, after in product(_BEFORE, _AFTER):
        left, right = image(before)[-1], image(after)[0]
        if not apart(before, after) or not apart(left, right):
            continue
        if not all(stage.separates(left, right) for stage in stages):
            continue
        if not any(stage.takes(left) for stage in stages):  # both may be in one word
            merged = merged or _merged(tokenizer)
            if not merged(left, right):
                continue
        pairs[after] = pairs.get(after, "") + before
    return pairs


def _state(component: Any) -> Mapping[str, Any] | None:
    """Returns a component in the format of tokenizer.json."""
    state: Mapping[str, Any] | None = json.loads(component.__getstate__()) if component is not None else None
    return state


def _images(normalizer: Mapping[str, Any] | None) -> Callable[[str], str]:
    """Returns the function from a character to its normalized text, which depends on no other character."""
    replaced: list[tuple[str, str]] = []
    for step in _steps(normalizer, "normalizers"):
        if step["type"] in _COMPOSING and not replaced:
            continue
        pattern, content = step.get("pattern", {}).get("String", ""), step.get("content", "")
        if step["type"] != "Replace" or len(pattern) != 1 or not (content.isascii() or content == "▁") or not content:
            raise NotUnderstood(step["type"])
        replaced.append((pattern, content))

    def image(char: str) -> str:
        for pattern, content in replaced:
            char = char.replace(pattern, content)
        return char

    return image


def _steps(component: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    if component is None:
        return
    if component["type"] == "Sequence":
        for each in component[inner]:
            yield from _steps(each, inner)
    else:
        yield component


def _stages(pre_tokenizer: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields the patterns whose matches each become a part, one stage after the other."""
    for step in _steps(pre_tokenizer, "pretokenizers"):
        kind = step["type"]
        if kind == "ByteLevel" and not step["add_prefix_space"]:
            if step["use_regex"]:
                yield _GPT_2
        elif kind == "Digits":
            yield r"\p{N}" if step["individual_digits"] else r"\p{N}+"
        elif kind == "Split" and not step["invert"]:
            pattern = step["pattern"]
            if step["behavior"] == "Isolated":
                yield pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"])
            elif pattern == {"String": " "}:
                yield r"(?! )\ "  # spaces join their neighbours
            else:
                raise NotUnderstood(step["behavior"])
        else:
            raise NotUnderstood(kind)


def _apart(tokenizer: Tokenizer) -> Splits:
    """Returns the test for pairs that are in no added token, as written and as normalized, and before no space that one
    takes."""
    added = list(tokenizer.get_added_tokens_decoder().values())
    contents = [token.content for token in added]
    if tokenizer.normalizer is not None:
        contents += map(tokenizer.normalizer.normalize_str, contents[:])
    joined = frozenset(pair for content in contents for pair in pairwise(content))
    taking = frozenset(token.content[-1:] for token in added if token.rstrip)
    return lambda before, after: before not in taking and (before, after) not in joined


def _merged(tokenizer: Tokenizer) -> Splits:
    """Returns the test for pairs that no merge joins, in a model that merges texts of several words."""
    model = tokenizer.model
    if not isinstance(model, models.BPE) or model.ignore_merges or model.dropout:
        raise NotUnderstood("the model merges across words")
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        raise NotUnderstood("tokens depend on their place in a word")
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    afters = frozenset("▁ \n") | frozenset(_BYTE_CHARS.values())
    joined = {pair for token in vocabulary for pair in pairwise(token) if pair[1] in afters}
    bytes_as_chars = "ByteLevel" in json.dumps(_state(tokenizer.pre_tokenizer) or {})

    def unmerged(before: str, after: str) -> bool:
        after = _BYTE_CHARS.get(after, after) if bytes_as_chars else after
        return before in vocabulary and after in vocabulary and (before, after) not in joined

    return unmerged
