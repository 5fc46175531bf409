"""The syntax of structural tags: nested formats, each with a type and its fields."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from legato_grammar.errors import InvalidGrammar

MAX_LEVELS: Final = 32  # of nested formats
MAX_REPEATS: Final = 1000
MAX_FORMATS: Final = 1000  # in one list
MAX_TEXTS: Final = 128
_REQUIRED: Final = object()
_STRUCTURE: Final = ("begin", "schema", "end")  # fields of a tag in the older syntax
_OLDER: Final = re.compile(r"^at \$\.format\.(?:tags(\[\d+\])(\.content\.json_schema|\.content)?|(triggers))")


@dataclass(frozen=True, slots=True)
class Node:
    """One format. All `fields` are present and have their types; nested formats are not checked yet."""

    kind: str
    fields: Mapping[str, Any]
    path: str
    level: int

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def at(self, name: str) -> str:
        return f"{self.path}.{name}"

    def inner(self, name: str) -> "Node":
        return _node(self.fields[name], self.at(name), self.level + 1)

    def all_inner(self, name: str) -> list["Node"]:
        kind = "tag" if name == "tags" else None
        listed = enumerate(self.fields[name])
        return [_node(given, f"{self.at(name)}[{i}]", self.level + 1, kind) for i, given in listed]

    def pairs(self, name: str) -> list[tuple[str, "Node"]]:
        listed = enumerate(self.fields[name])
        return [(begin, _node(given, f"{self.at(name)}[{i}][1]", self.level + 1)) for i, (begin, given) in listed]


def read(given: Any) -> Node:
    """Returns the outermost format. Raises InvalidGrammar with the path of the fault."""
    if not isinstance(given, dict):
        raise InvalidGrammar("at $: expected an object such as {format: …}")
    known = ("type", "structures", "triggers", "at_least_one") if "structures" in given else ("type", "format")
    for key in given:
        if key not in known:
            raise InvalidGrammar(f"at $.{key[:40]}: not supported (only {', '.join(known)})")
    if given.get("type", "structural_tag") != "structural_tag":
        raise InvalidGrammar("at $.type: expected structural_tag")
    if "structures" in given:
        return _older(given)
    if given.get("format") is None:
        raise InvalidGrammar("at $.format: missing")
    return _node(given["format"], "$.format", 1)


def with_given_paths(given: Any, fault: str) -> str:
    """Returns a fault's text with the paths of `given`, which may have the older syntax."""
    if not isinstance(given, dict) or "structures" not in given:
        return fault
    return _OLDER.sub(_older_place, fault)


def _older_place(match: re.Match[str]) -> str:
    return f"at $.{match[3] or f'structures{match[1]}' + ('.schema' if match[2] else '')}"


def _older(given: Mapping[str, Any]) -> Node:
    structures = given["structures"]
    if not isinstance(structures, list):
        raise InvalidGrammar("at $.structures: expected a list of objects")
    tags = []
    for number, each in enumerate(structures):
        at = f"$.structures[{number}]"
        if not isinstance(each, dict):
            raise InvalidGrammar(f"at {at}: expected an object with begin, schema and end")
        for key in _STRUCTURE:
            if each.get(key) is None:
                raise InvalidGrammar(f"at {at}.{key}: missing")
        for key in each:
            if key not in _STRUCTURE:
                raise InvalidGrammar(f"at {at}.{key[:40]}: not supported (only begin, schema and end)")
        content = {"type": "json_schema", "json_schema": each["schema"]}
        tags.append({"begin": each["begin"], "content": content, "end": each["end"]})
    more = {key: given[key] for key in ("triggers", "at_least_one") if key in given}
    return _node({"type": "triggered_tags", "tags": tags, **more}, "$.format", 1)


def _node(given: Any, path: str, level: int, kind: str | None = None) -> Node:
    if level > MAX_LEVELS:
        raise InvalidGrammar(f"at {path}: more than {MAX_LEVELS} nested formats")
    if not isinstance(given, dict):
        raise InvalidGrammar(f"at {path}: expected a format: an object with a type")
    type_ = given.get("type", kind)
    if not isinstance(type_, str) or type_ not in _KINDS or type_ != (kind or type_):
        allowed = kind or ", ".join(_KINDS)
        raise InvalidGrammar(f"at {path}.type: {str(type_)[:40]!r} is not supported (only {allowed})")
    known = _KINDS[type_]
    for key in given:
        if key != "type" and key not in known:
            raise InvalidGrammar(f"at {path}.{key[:40]}: not supported in {type_}")
    fields = {name: _value(given, name, field, path) for name, field in known.items()}
    node = Node(type_, fields, path, level)
    _check_together(node)
    return node


def _value(given: Mapping[str, Any], name: str, field: "_Field", path: str) -> Any:
    value = given.get(name, field.default)
    if value is _REQUIRED:
        raise InvalidGrammar(f"at {path}.{name}: missing")
    if name in given and not field.fits(value):
        raise InvalidGrammar(f"at {path}.{name}: expected {field.expected}")
    return value


def _check_together(node: Node) -> None:
    """Raises InvalidGrammar if the fields of one format contradict each other."""
    if node.kind == "repeat" and not (node["max"] == -1 or node["min"] <= node["max"]):
        raise InvalidGrammar(f"at {node.at('max')}: expected -1, or at least min")
    if node.kind != "triggered_tags":
        return
    begins = [tag["begin"] for tag in node.all_inner("tags")]
    for number, begin in enumerate(begins):
        matching = sum(begin.startswith(trigger) for trigger in node["triggers"])
        if matching != 1:
            text = f"expected to begin with one of the triggers, not with {matching or 'none'} of them"
            raise InvalidGrammar(f"at {node.at(f'tags[{number}].begin')}: {text}")
    for number, trigger in enumerate(node["triggers"]):
        if not any(begin.startswith(trigger) for begin in begins):
            raise InvalidGrammar(f"at {node.at(f'triggers[{number}]')}: no tag begins with it")


@dataclass(frozen=True, slots=True)
class _Field:
    expected: str
    fits: Callable[[Any], bool]
    default: Any = _REQUIRED


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_REPEATS


def _is_list(value: Any, least: int, most: int) -> bool:
    return isinstance(value, list) and least <= len(value) <= most


def _is_texts(value: Any) -> bool:
    return _is_list(value, 0, MAX_TEXTS) and all(isinstance(text, str) and text for text in value)


def _is_pair(value: Any) -> bool:
    return _is_list(value, 2, 2) and isinstance(value[0], str) and bool(value[0])


_TEXT: Final = _Field("text; tokens are not supported", lambda value: isinstance(value, str))
_TEXTS: Final = _Field(
    f"a list of 1 to {MAX_TEXTS} texts, none of them empty", lambda value: _is_texts(value) and bool(value)
)
_EXCLUDES: Final = _Field(f"a list of up to {MAX_TEXTS} texts, none of them empty", _is_texts, ())
_END: Final = _Field(
    "text, or a list of texts; tokens are not supported",
    lambda value: isinstance(value, str) or (_is_texts(value) and bool(value)),
)
_FORMAT: Final = _Field("a format", lambda value: isinstance(value, dict))
_FORMATS: Final = _Field(f"a list of 1 to {MAX_FORMATS} formats", lambda value: _is_list(value, 1, MAX_FORMATS))
_PAIRS: Final = _Field(
    f"a list of 1 to {MAX_TEXTS} [text, format] with distinct texts",
    lambda value: (
        _is_list(value, 1, MAX_TEXTS) and all(map(_is_pair, value)) and len({text for text, _ in value}) == len(value)
    ),
)
_SCHEMA: Final = _Field("a JSON schema: an object", lambda value: isinstance(value, dict | bool))
_FLAG: Final = _Field("true or false", lambda value: isinstance(value, bool), False)
_LOOP: Final = _Field("true or false", lambda value: isinstance(value, bool), True)
_NO_BOUND: Final = _Field("null: bounds in tokens are not supported", lambda value: value is None, None)
_JSON: Final = _Field("json: no other style is supported", lambda value: value == "json", "json")
_ORDERED: Final = _Field("false: properties come in the order of the schema", lambda value: value is False, False)
_TAGS: Final = {"tags": _FORMATS, "at_least_one": _FLAG, "stop_after_first": _FLAG}
_KINDS: Final[Mapping[str, Mapping[str, _Field]]] = {
    "const_string": {"value": _TEXT},
    "json_schema": {"json_schema": _SCHEMA, "style": _JSON, "any_order": _ORDERED},
    "grammar": {"grammar": _TEXT},
    "regex": {"pattern": _TEXT},
    "any_text": {"excludes": _EXCLUDES, "max_tokens": _NO_BOUND},
    "sequence": {"elements": _FORMATS},
    "or": {"elements": _FORMATS},
    "optional": {"content": _FORMAT},
    "plus": {"content": _FORMAT},
    "star": {"content": _FORMAT},
    "repeat": {
        "min": _Field(f"a number from 0 to {MAX_REPEATS}", lambda value: _is_count(value, 0)),
        "max": _Field(f"a number from 0 to {MAX_REPEATS}, or -1", lambda value: _is_count(value, -1)),
        "content": _FORMAT,
    },
    "tag": {"begin": _TEXT, "content": _FORMAT, "end": _END},
    "triggered_tags": {"triggers": _TEXTS, "excludes": _EXCLUDES, **_TAGS},
    "tags_with_separator": {"separator": _TEXT, **_TAGS},
    "dispatch": {"rules": _PAIRS, "loop": _LOOP, "excludes": _EXCLUDES},
}
