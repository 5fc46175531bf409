"""Grammars of answers: OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_` fields.

A grammar is checked before anything is dispatched. One that cannot be enforced in full is refused, with the place of
the problem: `strict` is always on.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.schemas import SamplingBody
from legato_gateway.serving.bodies import parsing
from legato_grammar import json_options, structural_tag, validation
from legato_grammar.errors import InvalidGrammar
from legato_protocol.sampling.limits import MAX_GRAMMAR_BYTES
from legato_protocol.sampling.parameters import CHOICE, JSON_SCHEMA, REGEX, RULES

ANY_OBJECT = '{"type":"object"}'
MAX_CHOICES = 1000
_ANYTHING = msgspec.json.Decoder(Any)
_FORMAT_KEYS = {"text": ("type",), "json_object": ("type", "schema"), "json_schema": ("type", "json_schema")}
_FORMATS = (*_FORMAT_KEYS, "structural_tag")
_NAMED_KEYS = ("name", "description", "strict", "schema", "json_schema")
_OPTIONS = {"disable_additional_properties", "disable_any_whitespace", "whitespace_pattern"}
_WITHOUT_EFFECT = ("disable_fallback",)  # there is one backend


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """A grammar in the form of `SamplingParams`. `param` is the field that it came from.

    With `ends`, an answer can end only where the grammar is complete.
    """

    kind: str
    source: str
    param: str
    ends: bool = True


def parse(body: SamplingBody) -> AnswerGrammar | None:
    """Returns the grammar of the answer, if any. Raises BadRequest, Unsupported."""
    given = [grammar for read in (_format, _structured, _guided) for grammar in read(body)]
    if len(given) > 1:
        both = f"{given[0].param} and {given[1].param}"
        raise BadRequest(f"{both} contradict each other: an answer can match one grammar", param=given[1].param)
    for grammar in given:
        check(grammar)
    return given[0] if given else None


def from_schema(schema: Any, param: str) -> AnswerGrammar:
    """Returns the grammar of a JSON schema. Raises BadRequest unless it is an object or a boolean."""
    if not isinstance(schema, dict | bool):
        raise BadRequest(f"{param} has to be a JSON schema: an object", param=param)
    return AnswerGrammar(JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), param)


def check(grammar: AnswerGrammar) -> None:
    """Raises BadRequest for a grammar that cannot be enforced."""
    _check_size(len(grammar.source.encode(errors="replace")), grammar.param)
    with _refusing(grammar.param):
        validation.check(grammar.kind, grammar.source)


@contextmanager
def _refusing(param: str) -> Iterator[None]:
    """Raises errors of a grammar as errors of the field it came from."""
    try:
        yield
    except InvalidGrammar as error:
        raise BadRequest(f"{param}: {error}", param=param) from None


def _check_size(size: int, param: str) -> None:
    if size > MAX_GRAMMAR_BYTES:
        raise BadRequest(f"{param} has {size} bytes; at most {MAX_GRAMMAR_BYTES} are allowed", param=param)


# ── the fields ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _format(body: SamplingBody) -> list[AnswerGrammar]:
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
            return [AnswerGrammar(JSON_SCHEMA, ANY_OBJECT, "response_format")]
        return [from_schema(_objects_only(schema), "response_format.schema")]
    if kind == "json_schema":
        return [_named_schema(given)]
    if kind == "structural_tag":
        return [_tagged(given, "response_format")]
    text = f"not a valid response_format.type: {str(kind)[:40]!r} ({', '.join(_FORMATS)})"
    raise BadRequest(text, param="response_format.type")


def _objects_only(schema: Any) -> Any:
    """Reads a schema of `json_object` as llama.cpp does: without a type or values, it describes an object."""
    if schema is True:
        return {"type": "object"}
    says_what = isinstance(schema, dict) and schema.keys() & {"type", "$ref", "const", "enum"}
    return schema if says_what or not isinstance(schema, dict) else {"type": "object", **schema}


def _named_schema(given: Mapping[str, Any]) -> AnswerGrammar:
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
    return from_schema(inner[key], f"{at}.{key}")


def _check_keys(given: Mapping[str, Any], known: Collection[str], at: str) -> None:
    """Raises Unsupported for a key with a value that would not be obeyed."""
    for key, value in given.items():
        if key not in known and value not in (None, False):
            raise Unsupported(f"{at}.{key[:40]} is not supported by this server", param=f"{at}.{key[:40]}")


def _structured(body: SamplingBody) -> list[AnswerGrammar]:
    given, at = _given(body, "structured_outputs"), "structured_outputs"
    if given is None:
        return []
    if not isinstance(given, dict):
        raise BadRequest(f"{at} has to be an object such as {{json: …}}", param=at)
    _check_keys(given, (*_KINDS, "json_object", *_OPTIONS, *_WITHOUT_EFFECT), at)
    grammars = [read(given[key], f"{at}.{key}") for key, read in _KINDS.items() if given.get(key) is not None]
    if given.get("json_object"):
        grammars.append(AnswerGrammar(JSON_SCHEMA, ANY_OBJECT, f"{at}.json_object"))
    return [_with_options(grammar, given) for grammar in grammars] if _OPTIONS & given.keys() else grammars


def _with_options(grammar: AnswerGrammar, given: Mapping[str, Any]) -> AnswerGrammar:
    """Applies vLLM's options of `structured_outputs`. Raises BadRequest, Unsupported."""
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
    with _refusing(grammar.param):
        schema = json_options.closed(schema) if closed else schema
        if space is not None:
            with _refusing(at):
                json_options.check_space(_text(space, at))
            return AnswerGrammar(RULES, json_options.spaced_by(schema, space), grammar.param)
        if compact:
            return AnswerGrammar(RULES, json_options.compact(schema), grammar.param)
    return AnswerGrammar(JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), grammar.param)


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name)
    if value is not None and not isinstance(value, bool):
        param = f"structured_outputs.{name}"
        raise BadRequest(f"{param} has to be true or false", param=param)
    return bool(value)


def _guided(body: SamplingBody) -> list[AnswerGrammar]:
    fields: dict[str, Callable[[Any, str], AnswerGrammar]] = {
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
    return parsing.decode(_ANYTHING, raw, field)


# ── the kinds ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _json(given: Any, param: str) -> AnswerGrammar:
    """Reads a schema, or the text of one."""
    return from_schema(_from_text(given, param) if isinstance(given, str) else given, param)


def _tagged(given: Any, param: str) -> AnswerGrammar:
    """Reads structural tags, or the text of them."""
    if isinstance(given, str):
        given = _from_text(given, param)
    _check_size(len(msgspec.json.encode(given)), param)
    with _refusing(param):
        return AnswerGrammar(RULES, structural_tag.rules(given), param)


def _from_text(given: str, param: str) -> Any:
    try:
        return msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"{param} is not JSON: {error}", param=param) from None


def _regex(given: Any, param: str) -> AnswerGrammar:
    return AnswerGrammar(REGEX, _text(given, param), param)


def _rules(given: Any, param: str) -> AnswerGrammar:
    return AnswerGrammar(RULES, _text(given, param), param)


def _text(given: Any, param: str) -> str:
    if not isinstance(given, str) or not given:
        raise BadRequest(f"{param} has to be text of at least one character", param=param)
    return given


def _choice(given: Any, param: str) -> AnswerGrammar:
    texts = isinstance(given, list) and all(isinstance(text, str) for text in given)
    if not texts or not 0 < len(given) <= MAX_CHOICES:
        raise BadRequest(f"{param} has to be a list of 1 to {MAX_CHOICES} texts", param=param)
    return AnswerGrammar(CHOICE, json.dumps(list(dict.fromkeys(given)), ensure_ascii=False), param)


_KINDS: Mapping[str, Callable[[Any, str], AnswerGrammar]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _rules,
    "structural_tag": _tagged,
}
