"""Checks whether a grammar can be obeyed, without a model: the vocabulary has one token for each byte."""

import json
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from threading import Lock
from typing import Any

from legato_grammar import schema as schemas
from legato_grammar.errors import InvalidGrammar
from legato_grammar.guidance import Compiler
from legato_grammar.vocabulary import SINGLE_BYTES
from legato_protocol.sampling.parameters import JSON_SCHEMA

MOST_KEPT = 1024  # digests; the oldest is forgotten first


class Verdicts:
    """Remembers grammars that `judge`, called with a grammar's kind and source, did not refuse with InvalidGrammar:
    clients send the same ones with each request.

    Safe to use from several threads, which may then judge the same grammar concurrently."""

    def __init__(self, judge: Callable[[str, str], None]) -> None:
        self._judge = judge
        self._good: dict[bytes, None] = {}
        self._changing = Lock()

    def check(self, kind: str, source: str) -> None:
        """Judges a grammar unless it is known to be valid. Raises InvalidGrammar."""
        digest = sha256(f"{kind}\0{source}".encode(errors="surrogatepass")).digest()
        if digest in self._good:
            return
        self._judge(kind, source)
        with self._changing:
            self._good[digest] = None
            if len(self._good) > MOST_KEPT:
                del self._good[next(iter(self._good))]


@lru_cache(maxsize=1)
def _compiler() -> Compiler:
    return Compiler(SINGLE_BYTES)


def check(kind: str, source: str) -> None:
    """Raises InvalidGrammar for a grammar that cannot be obeyed. Takes milliseconds, at worst a second or two;
    microseconds for a known grammar."""
    _verdicts().check(kind, source)


@lru_cache(maxsize=1)
def _verdicts() -> Verdicts:
    return Verdicts(_judge)


def _judge(kind: str, source: str) -> None:
    if kind != JSON_SCHEMA:
        _compiler().compile(kind, source)
        return
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"not JSON: {error}") from None
    if fault := _fault(schema):
        path = schemas.locate(schema, fault, _fault)
        raise InvalidGrammar(f"at {schemas.shown(path)}: {fault}")
    schemas.check_ends(schema)
    schemas.check_counts(schema)


def _fault(schema: Any) -> str:
    try:
        _compiler().compile(JSON_SCHEMA, json.dumps(schema))
    except InvalidGrammar as error:
        return str(error)
    return ""
