"""Checks of a JSON schema before it is compiled: its size, and that a finite value matches it.

The compiler follows references by recursion on the stack, and accepts schemas that only infinite values match.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from legato_grammar.errors import InvalidGrammar

MAX_LEVELS = 400  # nesting of the schema plus nesting of everything that it refers to
MAX_PROPERTIES = 2000  # of all objects: the compiler's time grows with their square
MAX_COMBINED = 12  # patterns and formats that one text may have to match: each doubles the compiler's work
_TRIES = 100  # parts that are compiled at most to locate a fault
ONE = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

Path = tuple[str | int, ...]
Schema = Any  # a JSON object or a boolean, if it is valid


def shown(path: Path) -> str:
    """Formats a path in a schema: `$.properties.name`."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def check_size(schema: Schema) -> None:
    """Raises InvalidGrammar for a schema that is too large to compile."""
    try:
        nodes, targets = _graph(schema)
        levels = sum(_depth(part) for part in (schema, *targets.values()))
    except RecursionError:
        levels, nodes = MAX_LEVELS + 1, {}
    if levels > MAX_LEVELS:
        raise InvalidGrammar(f"it has more than {MAX_LEVELS} levels, including everything that it refers to")
    properties = sum(len(each) for node in nodes.values() if isinstance(each := node.get("properties"), dict))
    if properties > MAX_PROPERTIES:
        raise InvalidGrammar(f"it has {properties} properties; at most {MAX_PROPERTIES} are allowed")
    patterns = sum(map(_patterns, nodes.values()))
    if patterns > MAX_COMBINED and any(map(_combines, nodes.values())):
        raise InvalidGrammar(f"it combines {patterns} patterns and formats; at most {MAX_COMBINED} are allowed")


def check_ends(schema: Schema) -> None:
    """Raises InvalidGrammar for a schema that no finite value matches.

    Collects parts that a finite value matches, starting with those that need no other part, until none is added.
    """
    nodes, targets = _graph(schema)
    if not targets:
        return
    ends: set[int] = set()
    left, progress = list(nodes.items()), True
    while left and progress:
        before = len(left)
        for key, node in left:
            if _ends(node, ends, targets):
                ends.add(key)
        left = [
            (key, node) for key, node in reversed(left) if key not in ends
        ]  # in the other order, since references may lead either way
        progress = len(left) < before
    if id(schema) not in ends:
        raise InvalidGrammar("no finite value matches it: each one must contain another one")


def check_counts(schema: Schema, path: Path = ()) -> None:
    """Raises InvalidGrammar for a `minProperties` that repeated names could satisfy.

    Grammars cannot forbid the repetition of a name that the schema does not list.
    """
    if isinstance(schema, dict) and not _counts_hold(schema):
        most = len(_required(schema)) + 1
        text = f"minProperties above {most} needs additionalProperties: false, since another name could come twice"
        raise InvalidGrammar(f"at {shown(path)}: {text}")
    for step, part in _children(schema):
        check_counts(part, path + step)


def _counts_hold(node: dict[str, Any]) -> bool:
    least = node.get("minProperties", 0)
    is_open = node.get("additionalProperties", True) is not False or bool(node.get("patternProperties"))
    return not is_open or not isinstance(least, int | float) or least <= len(_required(node)) + 1


def _required(node: dict[str, Any]) -> set[str]:
    """Returns the required properties in `properties`, whose names cannot be repeated."""
    properties = node.get("properties")
    names = {name for name in _list(node, "required") if isinstance(name, str)}
    return names & properties.keys() if isinstance(properties, dict) else set()


def locate(schema: Schema, fault: str, judge: Callable[[Schema], str]) -> Path:
    """Returns the path of the smallest part for which `judge` returns `fault`, as it does for the whole schema."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, dict) and key in schema}
    path: Path = ()
    part, left = schema, _TRIES
    while left > 0:
        parts = [(step, inner) for step, inner in _children(part) if isinstance(inner, dict)][:left]
        left -= len(parts) + 1
        step, inner = next(
            ((step, inner) for step, inner in parts if judge({**shared, **inner}) == fault),
            ((), _referred(schema, part)),
        )
        if inner is None:
            break
        path, part = (path + step, inner) if step else (_steps(part["$ref"]), inner)
    return path


def _referred(schema: Schema, part: Schema) -> Schema:
    """Returns the target of a part's reference, if it is another object."""
    ref = part.get("$ref") if isinstance(part, dict) else None
    target = _target(schema, ref) if isinstance(ref, str) else None
    return target if isinstance(target, dict) and target is not part else None


def _graph(schema: Schema) -> tuple[dict[int, dict[str, Any]], dict[str, Schema]]:
    """Returns all parts by identity, inner ones first, and the target of each reference among them."""
    nodes = dict(_nodes(schema))
    targets: dict[str, Schema] = {}
    new = {ref for node in nodes.values() for ref in _refs(node)}
    while new:
        new_targets = {ref: _target(schema, ref) for ref in new}
        targets |= new_targets
        more = {key: node for target in new_targets.values() for key, node in _nodes(target) if key not in nodes}
        nodes = more | nodes
        new = {ref for node in more.values() for ref in _refs(node)} - targets.keys()
    return nodes, targets


def _children(node: Schema) -> Iterator[tuple[Path, Schema]]:
    if not isinstance(node, dict):
        return
    for key in ONE:
        if isinstance(node.get(key), dict | bool):
            yield (key,), node[key]
    for key in LISTS:
        if isinstance(parts := node.get(key), list):
            yield from (((key, place), inner) for place, inner in enumerate(parts))
    for key in NAMED:
        if isinstance(named := node.get(key), dict):
            yield from (((key, name), inner) for name, inner in named.items())


def _nodes(schema: Schema) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields all objects that are schemas, by identity, inner ones first."""
    for _, inner in _children(schema):
        yield from _nodes(inner)
    if isinstance(schema, dict):
        yield id(schema), schema


def _patterns(node: dict[str, Any]) -> int:
    named = node.get("patternProperties")
    return sum(key in node for key in ("pattern", "format")) + (len(named) if isinstance(named, dict) else 0)


def _combines(node: dict[str, Any]) -> bool:
    """True if one text may have to match several of the schema's patterns."""
    refers = any(key in node for key in ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"))
    return len(_list(node, "allOf")) > 1 or (refers and _patterns(node) > 0)


def _refs(node: dict[str, Any]) -> list[str]:
    return [node[key] for key in ("$ref", "$dynamicRef") if isinstance(node.get(key), str)]


def _target(schema: Schema, ref: str) -> Schema:
    """Returns the target of a reference within the schema; None for any other, which the compiler judges."""
    if not ref.startswith("#"):
        return None
    if ref[1:] and not ref.startswith("#/"):
        return next((node for _, node in _nodes(schema) if ref[1:] in _anchors(node)), None)
    target = schema
    for step in _steps(ref):
        if isinstance(target, dict):
            target = target.get(step)
        elif isinstance(target, list) and str(step).isdigit() and int(step) < len(target):
            target = target[int(step)]
        else:
            return None
    return target


def _anchors(node: dict[str, Any]) -> list[Any]:
    return [node.get("$anchor"), node.get("$dynamicAnchor")]


def _steps(ref: str) -> Path:
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in ref[1:].split("/")[1:])


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _ends(node: dict[str, Any], ends: set[int], targets: Mapping[str, Schema]) -> bool:
    """True if a finite value is known to match."""

    def known(part: Schema) -> bool:
        return id(part) in ends if isinstance(part, dict) else part is not False

    if not all(known(targets[ref]) for ref in _refs(node)):
        return False
    if not all(known(part) for part in _list(node, "allOf")):
        return False
    if any(not any(map(known, parts)) for key in ("anyOf", "oneOf") if (parts := _list(node, key))):
        return False
    if "const" in node or "enum" in node:
        return True
    kinds = node.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list):
        kinds = ["object"] if "properties" in node else ["array"] if "prefixItems" in node else ["null"]
    return any(
        _object_ends(node, known) if kind == "object" else _array_ends(node, known) if kind == "array" else True
        for kind in kinds
    )


def _object_ends(node: dict[str, Any], known: Callable[[Schema], bool]) -> bool:
    """True if finite values are known for all required properties of an object, and for `minProperties` of them."""
    properties, named = node.get("properties"), node.get("patternProperties")
    properties = properties if isinstance(properties, dict) else {}
    unlisted = [*(named.values() if isinstance(named, dict) else ()), node.get("additionalProperties", True)]
    is_open = any(map(known, unlisted))  # whether a name matches its pattern is left to the compiler
    least = node.get("minProperties", 0)
    if isinstance(least, int | float) and not is_open and sum(map(known, properties.values())) < least:
        return False
    required = (name for name in _list(node, "required") if isinstance(name, str))
    return all(known(properties[name]) if name in properties else is_open for name in required)


def _array_ends(node: dict[str, Any], known: Callable[[Schema], bool]) -> bool:
    """True if finite values are known for all required items of an array."""
    least = node.get("minItems", 0)
    least = least if isinstance(least, int | float) else 0
    first = _list(node, "prefixItems")
    return all(map(known, first[: int(least)])) and (least <= len(first) or known(node.get("items", True)))


def _list(node: dict[str, Any], key: str) -> list[Any]:
    value = node.get(key)
    return value if isinstance(value, list) else []
