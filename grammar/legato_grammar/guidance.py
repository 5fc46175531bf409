"""The one door to llguidance: grammars compiled for a vocabulary, and matchers that follow a text token by token.

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
from legato_protocol.sampling_params import CHOICE, JSON_SCHEMA, REGEX, RULES

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
_SHOWN = 300  # characters of an error
_MEANINGS = {"NoExtensionBias": "no text matches it"}


class Matcher:
    """Where one text is in a grammar. Not safe to use from two threads at once."""

    __slots__ = ("_matcher", "_words")

    def __init__(self, matcher: LLMatcher, words: int) -> None:
        self._matcher = matcher
        self._words = words

    def consume(self, tokens: Sequence[int]) -> bool:
        """The text goes on with these; False where the grammar does not allow one of them, now and for ever after."""
        return self._matcher.consume_tokens(list(tokens))

    def mask(self) -> bytearray:
        """Which tokens may come next: `words` numbers of 32 bits, a bit for each id, lowest first. Releases the
        interpreter's lock."""
        return bytearray(self._matcher.compute_bitmask()[: 4 * self._words])

    @property
    def accepting(self) -> bool:
        """The text so far is a whole answer."""
        return self._matcher.is_accepting()

    @property
    def error(self) -> str:
        """Why the grammar cannot be followed any further; empty where it can."""
        return self._matcher.get_error() if self._matcher.is_error() else ""


class Grammar:
    """A compiled grammar, never changed: every text has a matcher of its own. Masks have `words` numbers; in them, the
    id `end` is that of no token, and says that the text may end. `nothing` is the mask with no bit set."""

    __slots__ = ("_start", "end", "nothing", "words")

    def __init__(self, start: LLMatcher, end: int) -> None:
        self._start = start
        self.end = end
        self.words = -(-(end + 1) // 32)
        self.nothing = bytes(4 * self.words)

    def matcher(self) -> Matcher:
        """One at the start of a text."""
        return Matcher(self._start.deep_copy(), self.words)


class Compiler:
    """Compiles grammars for one vocabulary. Made in about a second for 100,000 tokens; safe to use from threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # A token that no model has stands for the end: where a text may end, its bit is set.
        self._end = len(vocabulary.tokens)
        tokens = _Tokens(vocabulary)
        self._tokens = LLTokenizer(tokens, n_vocab=self._end + 1, eos_token=self._end)  # type: ignore[arg-type]

    @property
    def words(self) -> int:
        """Numbers of 32 bits in a mask."""
        return -(-(self._end + 1) // 32)

    def compile(self, kind: str, source: str) -> Grammar:
        """Releases the interpreter's lock for most of its time. Raises InvalidGrammar, also where no text at all
        matches or none that the vocabulary can spell."""
        matcher = LLMatcher(self._tokens, _translated(kind, source), log_level=0, limits=_LIMITS)
        fault = matcher.get_error() if matcher.is_error() else ""
        if not fault and not any(matcher.compute_bitmask()):
            fault = "no text matches it"
        if fault or matcher.is_error():
            raise InvalidGrammar(_short(fault or matcher.get_error()))
        return Grammar(matcher, self._end)


class _Tokens:
    """A vocabulary as llguidance reads it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = len(vocabulary.tokens)
        self.tokens = [*vocabulary.tokens, b""]
        self.special_token_ids = [*vocabulary.special, self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        return []  # asked for text that is forced, and here none is


def as_lark(rules: str) -> str:
    """Rules in Lark's form, whichever they have. Raises InvalidGrammar."""
    try:
        found: str = any_to_lark(rules)
    except Exception as error:  # of a rule that is not there, the library raises nothing narrower
        raise InvalidGrammar(_short(str(error))) from None
    return found.replace("%llguidance {}", "")


def _translated(kind: str, source: str) -> str:
    """The grammar in Lark's form. Text that can only go on in one way is sampled like any other, in the tokens that the
    model prefers for it."""
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
        found: str = json.loads(LLMatcher.grammar_from_regex(lark.unanchored(source)))["grammars"][0]["lark_grammar"]
        return found
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
    """Schemas within rules have the limits of one that stands alone: beyond them the compiler ends its process."""
    for found in _SCHEMA.finditer(rules):
        try:
            schema, _ = json.JSONDecoder().raw_decode(rules, found.end())
        except (ValueError, RecursionError):
            raise InvalidGrammar("%json has to be followed by a JSON schema") from None
        schemas.check_size(schema)


def _short(fault: str) -> str:
    """The library's words without its state, and without the grammar, which it repeats."""
    if fault.startswith("panic"):
        return "it cannot be compiled"
    line = " ".join(re.split(r"<state>|<non-verbose/>|\n +\d+ \| ", fault)[0].split())
    line = re.sub(r"^(at )?1\(8\): (failed to compile JSON schema: )?", "", line)
    return _MEANINGS.get(line, line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…")
