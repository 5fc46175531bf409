"""What an answer has to match: OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_` fields.

A grammar is judged before anything is dispatched. One that cannot be obeyed in full is refused, with the place in it:
that is `strict`, whether it was asked for or not.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.schemas import SamplingBody
from legato_gateway.serving import bodies
from legato_grammar import json_options, structural_tag, validation
from legato_grammar.errors import InvalidGrammar
from legato_protocol.sampling_limits import MAX_GRAMMAR_BYTES
from legato_protocol.sampling_params import CHOICE, JSON_SCHEMA, REGEX, RULES

ANY_OBJECT = '{"type":"object"}'
MAX_CHOICES = 1000
_ANYTHING = msgspec.json.Decoder(Any)
_FORMAT_KEYS = {"text": ("type",), "json_object": ("type", "schema"), "json_schema": ("type", "json_schema")}
_FORMATS = (*_FORMAT_KEYS, "structural_tag")
_NAMED_KEYS = ("name", "description", "strict", "schema", "json_schema")
_OPTIONS = {"disable_additional_properties", "disable_any_whitespace", "whitespace_pattern"}
_WITHOUT_EFFECT = ("disable_fallback",)  # there is one backend


@dataclass(frozen=True, slots=True)
class Grammar:
    """As `SamplingParams` has it. `param` is the field that it came from; `ends` says that an answer can end only where
    it is complete."""

    kind: str
    source: str
    param: str
    ends: bool = True


def of(body: SamplingBody) -> Grammar | None:
    """What the answer to this request has to match, if anything. Raises BadRequest, Unsupported."""
    found = [grammar for read in (_format, _structured, _guided) for grammar in read(body)]
    if len(found) > 1:
        both = f"{found[0].param} and {found[1].param}"
        raise BadRequest(f"{both} contradict each other: an answer can match one grammar", param=found[1].param)
    for grammar in found:
        check(grammar)
    return found[0] if found else None


def of_schema(schema: Any, param: str) -> Grammar:
    """JSON of a schema. Raises BadRequest for one that is no object or boolean."""
    if not isinstance(schema, dict | bool):
        raise BadRequest(f"{param} has to be a JSON schema: an object", param=param)
    return Grammar(JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), param)


def check(grammar: Grammar) -> None:
    """Raises BadRequest for a grammar that cannot be obeyed."""
    size, param = len(grammar.source.encode(errors="replace")), grammar.param
    _check_size(size, param)
    try:
        validation.check(grammar.kind, grammar.source)
    except InvalidGrammar as error:
        raise BadRequest(f"{param}: {error}", param=param) from None


def _check_size(size: int, param: str) -> None:
    if size > MAX_GRAMMAR_BYTES:
        raise BadRequest(f"{param} has {size} bytes; at most {MAX_GRAMMAR_BYTES} are allowed", param=param)


# ── the fields ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _format(body: SamplingBody) -> list[Grammar]:
    given = _given(body, "response_format")
    if given is None:
        return []
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(kind, str) and kind in _FORMAT_KEYS:
        _check_keys(given, _FORMAT_KEYS[kind], "response_format")
    if kind == "text":
        return []
    if kind == "json_object":
        schema = given.get("schema")
        if schema is None:
            return [Grammar(JSON_SCHEMA, ANY_OBJECT, "response_format")]
        return [of_schema(_of_objects(schema), "response_format.schema")]
    if kind == "json_schema":
        return [_named_schema(given)]
    if kind == "structural_tag":
        return [_tagged(given, "response_format")]
    text = f"not a valid response_format.type: {str(kind)[:40]!r} ({', '.join(_FORMATS)})"
    raise BadRequest(text, param="response_format.type")


def _of_objects(schema: Any) -> Any:
    """As llama.cpp reads one beside `json_object`: where it names no type, it is that of an object."""
    if schema is True:
        return {"type": "object"}
    return schema if not isinstance(schema, dict) or schema.keys() & {"type", "$ref"} else {"type": "object", **schema}


def _named_schema(given: Mapping[str, Any]) -> Grammar:
    inner, at = given.get("json_schema"), "response_format.json_schema"
    if not isinstance(inner, dict):
        raise BadRequest(f"{at} is missing", param=at)
    _check_keys(inner, _NAMED_KEYS, at)
    strict = inner.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise BadRequest(f"{at}.strict has to be true or false", param=f"{at}.strict")
    key = "schema" if inner.get("schema") is not None or inner.get("json_schema") is None else "json_schema"  # vLLM's
    if inner.get(key) is None:
        raise BadRequest(f"{at}.schema is missing", param=f"{at}.schema")
    return of_schema(inner[key], f"{at}.{key}")


def _check_keys(given: Mapping[str, Any], known: Collection[str], at: str) -> None:
    """Raises Unsupported for a key that asks for something which would not be obeyed."""
    for key, value in given.items():
        if key not in known and value not in (None, False):
            raise Unsupported(f"{at}.{key[:40]} is not supported by this server", param=f"{at}.{key[:40]}")


def _structured(body: SamplingBody) -> list[Grammar]:
    given, at = _given(body, "structured_outputs"), "structured_outputs"
    if given is None:
        return []
    if not isinstance(given, dict):
        raise BadRequest(f"{at} has to be an object such as {{json: …}}", param=at)
    _check_keys(given, (*_KINDS, "json_object", *_OPTIONS, *_WITHOUT_EFFECT), at)
    found = [read(given[key], f"{at}.{key}") for key, read in _KINDS.items() if given.get(key) is not None]
    if given.get("json_object"):
        found.append(Grammar(JSON_SCHEMA, ANY_OBJECT, f"{at}.json_object"))
    return [_with_options(grammar, given) for grammar in found] if _OPTIONS & given.keys() else found


def _with_options(grammar: Grammar, given: Mapping[str, Any]) -> Grammar:
    """As vLLM's options of `structured_outputs` say. Raises BadRequest, Unsupported."""
    closed, compact = (_flag(given, name) for name in ("disable_additional_properties", "disable_any_whitespace"))
    space, at = given.get("whitespace_pattern"), "structured_outputs.whitespace_pattern"
    if space is not None and compact:
        raise BadRequest(f"{at} and structured_outputs.disable_any_whitespace contradict each other", param=at)
    if not closed and not compact and space is None:
        return grammar
    if grammar.kind != JSON_SCHEMA:
        option = next(name for name in sorted(_OPTIONS) if given.get(name))
        text = f"structured_outputs.{option} is supported with json and json_object only"
        raise Unsupported(text, param=f"structured_outputs.{option}")
    schema = json.loads(grammar.source)
    try:
        schema = json_options.closed(schema) if closed else schema
        if space is not None:
            _check_space(_text(space, at), at)
            return Grammar(RULES, json_options.spaced_by(schema, space), grammar.param)
        if compact:
            return Grammar(RULES, json_options.compact(schema), grammar.param)
    except InvalidGrammar as error:
        raise BadRequest(f"{grammar.param}: {error}", param=grammar.param) from None
    return Grammar(JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), grammar.param)


def _check_space(pattern: str, param: str) -> None:
    try:
        json_options.check_space(pattern)
    except InvalidGrammar as error:
        raise BadRequest(f"{param}: {error}", param=param) from None


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name)
    if value is not None and not isinstance(value, bool):
        param = f"structured_outputs.{name}"
        raise BadRequest(f"{param} has to be true or false", param=param)
    return bool(value)


def _guided(body: SamplingBody) -> list[Grammar]:
    fields: dict[str, Callable[[Any, str], Grammar]] = {
        "guided_json": _json,
        "guided_regex": _regex,
        "guided_choice": _choice,
        "guided_grammar": _rules,
    }
    given = {field: _given(body, field) for field in fields}
    return [fields[field](value, field) for field, value in given.items() if value is not None]


def _given(body: SamplingBody, field: str) -> Any:
    raw: Raw | UnsetType = getattr(body, field)
    if raw is UNSET:
        return None
    try:
        return bodies.decode(_ANYTHING, raw, field)
    except RecursionError:
        raise BadRequest(f"{field} is nested too deeply", param=field) from None


# ── the kinds ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _json(given: Any, param: str) -> Grammar:
    """A schema, or the text of one."""
    return of_schema(_from_text(given, param) if isinstance(given, str) else given, param)


def _tagged(given: Any, param: str) -> Grammar:
    """Structural tags, or the text of them."""
    if isinstance(given, str):
        given = _from_text(given, param)
    _check_size(len(msgspec.json.encode(given)), param)
    try:
        return Grammar(RULES, structural_tag.rules(given), param)
    except InvalidGrammar as error:
        raise BadRequest(f"{param}: {error}", param=param) from None


def _from_text(given: str, param: str) -> Any:
    try:
        return msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"{param} is no JSON: {error}", param=param) from None


def _regex(given: Any, param: str) -> Grammar:
    return Grammar(REGEX, _text(given, param), param)


def _rules(given: Any, param: str) -> Grammar:
    return Grammar(RULES, _text(given, param), param)


def _text(given: Any, param: str) -> str:
    if not isinstance(given, str) or not given:
        raise BadRequest(f"{param} has to be text of at least one character", param=param)
    return given


def _choice(given: Any, param: str) -> Grammar:
    texts = isinstance(given, list) and all(isinstance(text, str) for text in given)
    if not texts or not 0 < len(given) <= MAX_CHOICES:
        raise BadRequest(f"{param} has to be a list of 1 to {MAX_CHOICES} texts", param=param)
    return Grammar(CHOICE, json.dumps(list(dict.fromkeys(given)), ensure_ascii=False), param)


_KINDS: Mapping[str, Callable[[Any, str], Grammar]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _rules,
    "structural_tag": _tagged,
}
