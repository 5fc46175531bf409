"""The only module that imports llguidance: grammars compiled for a vocabulary, and matchers that follow a text by
tokens.

llguidance (https://github.com/guidance-ai/llguidance) refuses a schema with a keyword that it cannot obey, computes
masks lazily, so that compiling takes a millisecond, and bounds the work of both.
"""

import json
import re
from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from legato_grammar import lark
from legato_grammar import schema as schemas
from legato_grammar.errors import InvalidGrammar
from legato_grammar.vocabulary import Vocabulary
from legato_protocol.sampling.parameters import CHOICE, JSON_SCHEMA, REGEX, RULES

MAX_RULES = 500  # the compiler follows them by recursion on the stack
_RULE = re.compile(r"^[ \t]*[?!_\w-][^:\n\"/]*:", re.MULTILINE)
_SCHEMA = re.compile(r"%json[ \t\r\n]*")
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # about 20 ms
    step_lexer_fuel=200_000,  # about 15 ms
    step_max_items=50_000,  # about 3 ms
    max_lexer_states=20_000,  # a sequence's, 1 to 2 kB each
    max_grammar_size=200_000,
    verbose_errors=False,
)
_OPTIONS = '{"no_forcing": true}'
_LONGEST = 1024  # bytes of a token: the library panics for longer ones, which no answer needs
_SHOWN = 300  # characters of an error
_MEANINGS = {"NoExtensionBias": "no text matches it"}


class Matcher:
    """The position of one text in a grammar. Not thread-safe."""

    __slots__ = ("_matcher", "_words")

    def __init__(self, matcher: LLMatcher, words: int) -> None:
        self._matcher = matcher
        self._words = words

    def consume(self, tokens: Sequence[int]) -> bool:
        """Appends tokens to the text. False once the grammar did not allow one of them."""
        return self._matcher.consume_tokens(list(tokens))

    def accepted(self, tokens: Sequence[int]) -> int:
        """Number of leading `tokens` that may be appended to the text, which stays as it is."""
        return self._matcher.validate_tokens(list(tokens))

    def take_back(self, count: int) -> bool:
        """Removes the last `count` tokens from the text. False if that is impossible."""
        return self._matcher.rollback(count)

    def mask(self) -> bytearray:
        """Returns the allowed next tokens as `words` 32-bit numbers, one bit per id, lowest first. Releases the GIL."""
        return bytearray(self._matcher.compute_bitmask()[: 4 * self._words])

    @property
    def accepting(self) -> bool:
        """True if the text so far is a complete answer."""
        return self._matcher.is_accepting()

    @property
    def error(self) -> str:
        """The reason why the grammar cannot be followed any further; empty if it can."""
        return self._matcher.get_error() if self._matcher.is_error() else ""


class Grammar:
    """An immutable compiled grammar: every text has its own matcher. Masks have `words` numbers, in which the bit
    `end`, not a token's id, says that the text may end. `nothing` is the mask with no bit set."""

    __slots__ = ("_start", "end", "nothing", "words")

    def __init__(self, start: LLMatcher, end: int) -> None:
        self._start = start
        self.end = end
        self.words = -(-(end + 1) // 32)
        self.nothing = bytes(4 * self.words)

    def matcher(self) -> Matcher:
        """Returns a matcher at the start of a text."""
        return Matcher(self._start.deep_copy(), self.words)


class Compiler:
    """A thread-safe compiler of grammars for one vocabulary. Its creation takes about a second for 100,000 tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # An id that is not a token's stands for the end: its bit is set where a text may end.
        self._end = len(vocabulary.tokens)
        tokens = _Tokens(vocabulary)
        self._tokens = LLTokenizer(tokens, n_vocab=self._end + 1, eos_token=self._end)  # type: ignore[arg-type]

    @property
    def words(self) -> int:
        """The number of 32-bit numbers in a mask."""
        return -(-(self._end + 1) // 32)

    def compile(self, kind: str, source: str) -> Grammar:
        """Compiles a grammar, mostly without the GIL. Raises InvalidGrammar, also if no text of the vocabulary's tokens
        matches."""
        matcher = LLMatcher(self._tokens, _translated(kind, source), log_level=0, limits=_LIMITS)
        fault = matcher.get_error() if matcher.is_error() else ""
        if not fault and not any(matcher.compute_bitmask()):
            fault = "no text matches it"
        if fault or matcher.is_error():
            raise InvalidGrammar(_short(fault or matcher.get_error()))
        return Grammar(matcher, self._end)


class _Tokens:
    """A vocabulary in the form that llguidance reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = len(vocabulary.tokens)
        self.tokens = [*(raw if len(raw) <= _LONGEST else b"" for raw in vocabulary.tokens), b""]
        # Empty special tokens would be the beginning of all special tokens.
        self.special_token_ids = [*(id for id in vocabulary.special if self.tokens[id]), self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        return []  # only used for forced text, which is switched off


def as_lark(rules: str) -> str:
    """Translates rules of Lark's or llama.cpp's syntax into Lark's. Raises InvalidGrammar."""
    try:
        translated: str = any_to_lark(rules)
    except Exception as error:  # for a missing rule, the library raises nothing narrower
        raise InvalidGrammar(_short(str(error))) from None
    return translated.replace("%llguidance {}", "")


def _translated(kind: str, source: str) -> str:
    """Returns the grammar in Lark's syntax. Text with only one continuation is sampled too, so that the model chooses
    its tokens."""
    try:
        return f"{_rules(kind, source)}\n%llguidance {_OPTIONS}\n"
    except InvalidGrammar:
        raise
    except (ValueError, TypeError, RecursionError, ArithmeticError) as error:
        raise InvalidGrammar(_short(str(error))) from None


def _rules(kind: str, source: str) -> str:
    if kind == JSON_SCHEMA:
        schema = json.loads(source)
        schemas.check_size(schema)
        return f"start: {lark.schema(schema)}"
    if kind == REGEX:
        rules: str = json.loads(LLMatcher.grammar_from_regex(lark.unanchored(source)))["grammars"][0]["lark_grammar"]
        return rules
    if kind == CHOICE:
        return "start: " + " | ".join(json.dumps(text) for text in json.loads(source))
    if kind == RULES:
        if "%llguidance" in source:
            raise InvalidGrammar("%llguidance is not allowed in it")
        if (count := len(_RULE.findall(source))) > MAX_RULES:
            raise InvalidGrammar(f"it has {count} rules; at most {MAX_RULES} are allowed")
        rules = as_lark(source)
        _check_schemas(rules)
        return rules
    raise InvalidGrammar(f"grammars of kind {kind[:32]!r} are not supported")


def _check_schemas(rules: str) -> None:
    """Applies the limits of schemas to schemas within rules: beyond them the compiler aborts its process."""
    for match in _SCHEMA.finditer(rules):
        try:
            schema, _ = json.JSONDecoder().raw_decode(rules, match.end())
        except (ValueError, RecursionError):
            raise InvalidGrammar("%json must be followed by a JSON schema") from None
        schemas.check_size(schema)


def _short(fault: str) -> str:
    """Shortens the library's message: without its state and without the repeated grammar."""
    if fault.startswith("panic"):
        return "it cannot be compiled"
    line = " ".join(re.split(r"<state>|<non-verbose/>|\n +\d+ \| ", fault)[0].split())
    line = re.sub(r"^(at )?1\(8\): (failed to compile JSON schema: )?", "", line)
    return _MEANINGS.get(line, line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…")
