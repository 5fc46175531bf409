"""Proves that no match of a pre-tokenizer's regular expression spans two given characters.

A pattern becomes a position automaton (Glushkov, 1961): each class of characters is a position, with the positions that
may follow it in a match. If none that matches `before` is followed by one that matches `after`, both sides have the
matches of the two texts by themselves. Constructs that are not understood raise NotUnderstood: such a tokenizer has no
cuts between characters.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Final

Class = Callable[[str], bool]
_CATEGORY = re.compile("C[cfnos]?|L[ulmto]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?")
_SCRIPT = re.compile("Han|Hiragana|Katakana|Hangul|Thai|Arabic|Cyrillic|Greek|Hebrew|Devanagari")
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_REPEATED = re.compile(r"\{(\d+)(,?)(\d*)\}")


class NotUnderstood(ValueError):
    """A construct of a tokenizer that the analysis does not understand, so nothing is proved."""


@dataclass(frozen=True)
class _Part:
    """A part of a pattern, by positions. `guarded`: more than one position or a lookahead may be needed for a match."""

    empty: bool
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    guarded: bool = False


_EMPTY: Final = _Part(True)


@dataclass
class Pattern:
    """A parsed pattern. Raises NotUnderstood. It judges ASCII characters."""

    source: str
    _at: int = 0
    _positions: list[Class] = field(default_factory=list)
    _follow: set[tuple[int, int]] = field(default_factory=set)
    _lookaheads: list[Class] = field(default_factory=list)
    _branches: tuple[_Part, ...] = ()
    _folds: bool = False

    def __post_init__(self) -> None:
        self._branches = tuple(self._alternatives())
        if self._at < len(self.source) or any(branch.empty for branch in self._branches):
            raise NotUnderstood(self.source)

    def separates(self, before: str, after: str) -> bool:
        """True if no match goes on from `before` to `after`, and none ends there only because a text ends."""
        if any(seen(after) for seen in self._lookaheads):
            return False
        return not any(self._positions[p](before) and self._positions[q](after) for p, q in self._follow)

    def takes(self, char: str) -> bool:
        """True if each `char` is part of a match: it is one by itself."""
        alone = (branch.first & branch.last for branch in self._branches if not branch.guarded)
        return any(self._positions[position](char) for positions in alone for position in positions)

    def _next(self, text: str) -> bool:
        if self.source.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self) -> list[_Part]:
        parts = [self._sequence()]
        while self._next("|"):
            parts.append(self._sequence())
        return parts

    def _sequence(self) -> _Part:
        made = _EMPTY
        while self._at < len(self.source) and self.source[self._at] not in "|)":
            part = self._repeated(self._atom())
            self._follow.update(product(made.last, part.first))
            made = _Part(
                made.empty and part.empty,
                made.first | part.first if made.empty else made.first,
                made.last | part.last if part.empty else part.last,
                made.guarded or part.guarded,
            )
        return made

    def _repeated(self, part: _Part) -> _Part:
        """Reads quantifiers. Counts become loops, which match more than the pattern does."""
        empty, loops, guarded = part.empty, False, part.guarded
        if counted := _REPEATED.match(self.source, self._at):
            self._at = counted.end()
            least, most = int(counted[1]), counted[3] if counted[2] else counted[1]
            empty, loops, guarded = empty or not least, most != "1", guarded or least > 1
        elif self._next("*"):
            empty, loops = True, True
        elif self._next("+"):
            loops = True
        elif self._next("?"):
            empty = True
        else:
            return part
        loops = loops or (counted is not None and self.source.startswith("+", self._at))  # Oniguruma repeats a count
        _ = self._next("?") or self._next("+")  # lazy or possessive: fewer matches
        if loops:
            self._follow.update(product(part.last, part.first))
        return _Part(empty, part.first, part.last, guarded)

    def _atom(self) -> _Part:
        if self._next("(?=") or self._next("(?!"):
            self._lookaheads.append(self._class())
            if not self._next(")"):
                raise NotUnderstood(self.source)
            return _Part(True, guarded=True)
        if self._next("("):
            return self._group()
        if self.source[self._at] in "*+?{^$":
            raise NotUnderstood(self.source)
        self._positions.append(self._class())
        only = frozenset([len(self._positions) - 1])
        return _Part(False, only, only)

    def _group(self) -> _Part:
        folds = self._folds
        if self._next("?i:"):
            self._folds = True
        elif not self._next("?:") and self.source[self._at : self._at + 1] == "?":
            raise NotUnderstood(self.source)
        parts, self._folds = self._alternatives(), folds
        if not self._next(")"):
            raise NotUnderstood(self.source)
        return _Part(
            any(part.empty for part in parts),
            frozenset[int]().union(*(part.first for part in parts)),
            frozenset[int]().union(*(part.last for part in parts)),
            any(part.guarded for part in parts),
        )

    def _class(self) -> Class:
        if self._next("["):
            return self._bracket()
        if self._next("."):
            return lambda char: char != "\n"
        taken = self._single()
        if isinstance(taken, str):
            return _folded(taken) if self._folds else taken.__eq__
        return taken

    def _bracket(self) -> Class:
        negated, options = self._next("^"), list[Class]()
        while not (options and self._next("]")):
            if self._at >= len(self.source) or self.source.startswith(("]", "[", "&&"), self._at):
                raise NotUnderstood(self.source)
            low = self._single()
            if not isinstance(low, str):
                options.append(low)
            elif self.source[self._at : self._at + 1] == "-" and self.source[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                options.append(_between(low, self._single(), self.source))
            else:
                options.append(_folded(low) if self._folds else low.__eq__)
        return lambda char: any(option(char) for option in options) is not negated

    def _single(self) -> str | Class:
        """Returns a character or, of an escape, a class."""
        char = self.source[self._at : self._at + 1]
        self._at += 1
        if char != "\\":
            return char
        kind = self.source[self._at : self._at + 1]
        self._at += 1
        if kind in _CONTROLS:
            return _CONTROLS[kind]
        if kind in "pP":
            return self._category(kind == "P")
        if kind in ("s", "S"):
            return lambda char: char.isspace() is (kind == "s")
        if kind in ("d", "D"):
            return lambda char: (unicodedata.category(char) == "Nd") is (kind == "d")
        if not kind or kind.isalnum():
            raise NotUnderstood(self.source)
        return kind

    def _category(self, negated: bool) -> Class:
        end = self.source.find("}", self._at)
        name = self.source[self._at + 1 : end].removeprefix("^")
        negated ^= self.source[self._at + 1 : self._at + 2] == "^"
        if self.source[self._at : self._at + 1] != "{" or end < 0:
            raise NotUnderstood(self.source)
        self._at = end + 1
        if _SCRIPT.fullmatch(name):
            return lambda char: negated  # ASCII is in none of them
        if _CATEGORY.fullmatch(name):
            return lambda char: unicodedata.category(char).startswith(name) is not negated
        raise NotUnderstood(self.source)


def _between(low: str, high: str | Class, source: str) -> Class:
    if not isinstance(high, str):
        raise NotUnderstood(source)
    return lambda char: low <= char <= high


def _folded(char: str) -> Class:
    return lambda each: each.casefold() == char.casefold()
