"""Structural tags of vLLM and xgrammar (https://xgrammar.mlc.ai/docs), translated into rules.

The content of tags must match their formats; other text is free until a trigger begins a tag. Adjacent regular parts
become one terminal: the lexer takes a terminal's longest text, so free text and the mark that ends it must be in one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from legato_grammar import guidance, lark, structural_format, validation
from legato_grammar.errors import InvalidGrammar
from legato_grammar.structural_format import Node
from legato_protocol.sampling.parameters import JSON_SCHEMA, REGEX, RULES

MAX_JUDGED: Final = 128  # different schemas, patterns and grammars: each may take a second
_ANY: Final = "/(?s:.*)/"
_UNENDING: Final = "text without an end is only allowed at the end of an answer, or in a tag that has an end"


def rules(given: Any) -> str:
    """Returns a grammar of the kind RULES. `given` is `{format: …}` or, in the older syntax,
    `{structures: …, triggers: …}`. Raises InvalidGrammar with the path of the part that cannot be obeyed."""
    writer = _Writer()
    try:
        start = writer.rendered(writer.parts(structural_format.read(given), (), True))
    except InvalidGrammar as error:
        raise InvalidGrammar(structural_format.with_given_paths(given, str(error))) from None
    return "\n".join([f"start: {start}", *writer.lines]) + "\n"


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a rule. A `terminal` part is regular, and written as in a terminal's definition."""

    text: str
    terminal: bool


class _Writer:
    """Translates formats. `lines` are the rules that they need."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}
        self._judged: set[tuple[str, str]] = set()

    def parts(self, node: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        """Returns the parts of `node`, followed by one of `ends` if there are any. With `free`, it may have no end."""
        translate = getattr(self, f"_{node.kind}", None)
        if translate is not None:
            parts: list[_Part] = translate(node, ends, free)
            return parts
        return [*self._simple(node), *_one_of(ends)]

    def rendered(self, parts: Sequence[_Part]) -> str:
        """Returns parts as the text of a rule."""
        texts: list[str] = []
        run: list[str] = []
        for part in (*parts, None):
            if part is not None and part.terminal:
                run.append(part.text)
                continue
            if run:
                texts.append(self._named("T", " ".join(run)))
                run = []
            if part is not None:
                texts.append(part.text)
        return " ".join(texts)

    def _simple(self, node: Node) -> list[_Part]:
        match node.kind:
            case "const_string":
                return _text(node["value"])
            case "regex":
                self._check(REGEX, node["pattern"], node.at("pattern"))
                return [_Part(lark.pattern(node["pattern"]), True)]
            case "grammar":
                return [_Part(self._nested(node), False)]
            case "json_schema":
                self._check(JSON_SCHEMA, json.dumps(node["json_schema"]), node.at("json_schema"))
                return [_Part(lark.schema(node["json_schema"]), False)]
            case _:
                return self._repeated(node)

    def _nested(self, node: Node) -> str:
        self._check(RULES, node["grammar"], node.at("grammar"))
        return f"%lark {{\n{guidance.as_lark(node['grammar'])}\n}}"

    def _repeated(self, node: Node) -> list[_Part]:
        inner = self.parts(node.inner("content"), (), False)
        least, most = {"star": (0, -1), "plus": (1, -1)}.get(node.kind) or (node["min"], node["max"])
        if most == 0:
            return []
        return [self._group([inner], f"{{{least},{most if most > 0 else ''}}}")]

    def _check(self, kind: str, source: str, path: str) -> None:
        if (kind, source) in self._judged:
            return
        if len(self._judged) == MAX_JUDGED:
            text = f"there are more than {MAX_JUDGED} different schemas, patterns and grammars"
            raise InvalidGrammar(f"at {path}: {text}")
        _check(kind, source, path)
        self._judged.add((kind, source))

    def _any_text(self, node: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        _check_ends(node, ends, free)
        return [self._without([*node["excludes"], *ends]), *_one_of(ends)]

    def _sequence(self, node: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        elements = node.all_inner("elements")
        parts: list[_Part] = []
        mark: tuple[str, ...] = ()  # the end of the previous element, which is this one's beginning
        for element, behind in zip(elements, (*elements[1:], None), strict=True):
            skipped = len(mark)
            mark = _mark(element, behind) if behind is not None else ()
            own, may_go_on = (mark, False) if behind is not None else (ends, free)
            parts += self.parts(element, own, may_go_on)[skipped:]
        return parts

    def _or(self, node: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        return [self._group([self.parts(each, ends, free) for each in node.all_inner("elements")])]

    def _optional(self, node: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        return [self._group([self.parts(node.inner("content"), ends, free), _one_of(ends)])]

    def _tag(self, node: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        return [*_text(node["begin"]), *self._behind(node, ends, free)]

    def _behind(self, tag: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        """Returns the parts of a tag after its beginning."""
        own = [end for end in _listed(tag["end"]) if end]
        content = tag.inner("content")
        return [*self.parts(content, own, False), *_one_of(ends)] if own else self.parts(content, ends, free)

    def _tags_with_separator(self, node: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        tag = self._group([self.parts(each, (), False) for each in node.all_inner("tags")])
        parts = [tag]
        if not node["stop_after_first"]:
            parts.append(self._group([[*_text(node["separator"]), tag]], "*"))
        if not node["at_least_one"]:
            parts = [self._group([parts, []])]
        return [*parts, *_one_of(ends)]

    def _triggered_tags(self, node: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        triggers, tags = node["triggers"], node.all_inner("tags")
        by_trigger = {trigger: [tag for tag in tags if tag["begin"].startswith(trigger)] for trigger in triggers}
        first = []
        if node["at_least_one"]:
            first = [self._group([self._tag(tag, (), False) for tag in tags])]
            if node["stop_after_first"]:
                return [*first, *_one_of(ends)]
        rests = {
            trigger: [[*_text(tag["begin"][len(trigger) :]), *self._behind(tag, (), False)] for tag in started]
            for trigger, started in by_trigger.items()
        }
        return [*first, *self._free(node, rests, not node["stop_after_first"], ends, free)]

    def _dispatch(self, node: Node, ends: Sequence[str], free: bool) -> list[_Part]:
        rests = {begin: [self.parts(inner, (), False)] for begin, inner in node.pairs("rules")}
        return self._free(node, rests, node["loop"], ends, free)

    def _free(
        self,
        node: Node,
        rests: Mapping[str, Sequence[Sequence[_Part]]],
        again: bool,
        ends: Sequence[str],
        free: bool,
    ) -> list[_Part]:
        """Returns free text in which the beginnings in `rests` must be followed by one of their alternatives, once or,
        with `again`, any number of times."""
        _check_ends(node, ends, free)
        _check_marks(node, [*rests, *ends, *node["excludes"]])
        text = self._without([*rests, *node["excludes"], *ends])
        behind = [*_one_of(ends)]
        tagged = []
        for begin, alternatives in rests.items():
            head = f"head_{len(self.lines)}"
            self.lines.append(f"{head}[lazy]: {text.text} {lark.literal(begin)}")
            tagged.append([_Part(head, False), self._group(alternatives)])
        if again:
            return [self._group(tagged, "*"), text, *behind]
        return [self._group([[self._group(tagged), *behind], [text, *behind]])]

    def _group(self, alternatives: Sequence[Sequence[_Part]], repeated: str = "") -> _Part:
        if all(part.terminal for parts in alternatives for part in parts):
            inner = " | ".join(" ".join(part.text for part in parts) for parts in alternatives)
            return _Part(f"({inner}){repeated}", True)
        return _Part(f"({' | '.join(map(self.rendered, alternatives))}){repeated}", False)

    def _without(self, marks: Iterable[str]) -> _Part:
        """Returns text that contains none of these marks."""
        literals = " | ".join(map(lark.literal, marks))
        return _Part(self._named("TEXT", f"{_ANY} & ~({_ANY} ({literals}) {_ANY})" if literals else _ANY), True)

    def _named(self, prefix: str, terminal: str) -> str:
        if terminal not in self._names:
            self._names[terminal] = f"{prefix}_{len(self.lines)}"
            self.lines.append(f"{self._names[terminal]}: {terminal}")
        return self._names[terminal]


def _text(text: str) -> list[_Part]:
    return [_Part(lark.literal(text), True)] if text else []


def _one_of(texts: Sequence[str]) -> list[_Part]:
    return [_Part(f"({' | '.join(map(lark.literal, texts))})", True)] if texts else []


def _listed(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


def _mark(element: Node, behind: Node) -> tuple[str, ...]:
    """Returns the beginning of the format after free text, if the text must end there."""
    begin = {"const_string": "value", "tag": "begin"}.get(behind.kind)
    excluded = begin is not None and behind[begin] in element.fields.get("excludes", ())
    return (behind[begin],) if begin is not None and excluded else ()


def _check_ends(node: Node, ends: Sequence[str], free: bool) -> None:
    if not ends and not free:
        raise InvalidGrammar(f"at {node.path}: {_UNENDING}")


def _check_marks(node: Node, marks: Sequence[str]) -> None:
    """Raises InvalidGrammar if a mark is a part of another, since a text would be ambiguous."""
    for mark in marks:
        other = next((other for other in marks if other != mark and mark in other), None)
        if other is not None:
            raise InvalidGrammar(f"at {node.path}: {mark[:40]!r} is a part of {other[:40]!r}")


def _check(kind: str, source: str, path: str) -> None:
    try:
        validation.check(kind, source)
    except InvalidGrammar as error:
        said = str(error)
        inner, fault = said[len("at $") :].split(": ", 1) if said.startswith("at $") else ("", said)
        raise InvalidGrammar(f"at {path}{inner}: {fault}") from None
