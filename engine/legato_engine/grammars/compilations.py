"""Compiles grammars in a thread, so that neither a step nor the loop waits for them."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import msgspec

from legato_engine.grammars.position import GrammarPosition
from legato_engine.grammars.reasoning import ReasoningPosition, ReasoningRules
from legato_engine.mailbox import Mailbox
from legato_engine.scheduler.batch import Constraint
from legato_grammar import vocabulary
from legato_grammar.errors import InvalidGrammar, UnreadableVocabulary
from legato_grammar.guidance import Compiler, Grammar
from legato_protocol.sampling.parameters import GRAMMAR_KINDS, REASONING, SamplingParams
from legato_protocol.sampling.reasoning import ReasoningBounds

MOST_KEPT = 128  # compiled grammars; the least recently used is dropped first

_log = logging.getLogger(__name__)
Compiled = Grammar | ReasoningRules | str  # str: why it cannot be compiled
_BOUNDS = msgspec.json.Decoder(ReasoningBounds)


class Compilations:
    """Used only by the core's loop. `kinds` are the supported kinds of grammars; empty without a vocabulary."""

    def __init__(self, make: Callable[[], Compiler] | None) -> None:
        self.kinds: tuple[str, ...] = GRAMMAR_KINDS if make is not None else ()
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._compiler = self._thread.submit(make) if make is not None else None
        self._kept: OrderedDict[bytes, Compiled] = OrderedDict()
        self._compiling: set[bytes] = set()
        self._done: Mailbox[tuple[bytes, Compiled]] = Mailbox()

    def ask(self, params: SamplingParams) -> Compiled | None:
        """Returns the compiled grammar of these parameters, or why it cannot be compiled; None while it is compiled."""
        if params.grammar_kind not in self.kinds:
            return f"grammars of kind {params.grammar_kind[:32]!r} are not supported here"
        digest = sha256(f"{params.grammar_kind}\0{params.grammar}".encode()).digest()
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return self._kept[digest]
        if digest not in self._compiling:
            self._compiling.add(digest)
            self._thread.submit(self._compile, digest, params.grammar_kind, params.grammar)
        return None

    def take_done(self) -> bool:
        """True if compilations have ended since the last call."""
        done = self._done.take()
        for digest, outcome in done:
            self._compiling.discard(digest)
            self._kept[digest] = outcome
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return bool(done)

    def fileno(self) -> int:
        """A descriptor that is readable when a compilation has ended."""
        return self._done.fileno()

    def _compile(self, digest: bytes, kind: str, source: str) -> None:
        assert self._compiler is not None
        try:
            outcome: Compiled = compile_grammar(self._compiler.result(), kind, source)
        except InvalidGrammar as error:
            outcome = str(error)
        except Exception as error:  # otherwise the request would wait until its deadline
            _log.exception("a grammar cannot be compiled")
            outcome = f"it cannot be compiled: {error!r}"
        self._done.put((digest, outcome))


def position(grammar: Grammar | ReasoningRules) -> Constraint:
    """The position of a sequence without output."""
    return ReasoningPosition(grammar) if isinstance(grammar, ReasoningRules) else GrammarPosition(grammar)


def compile_grammar(compiler: Compiler, kind: str, source: str) -> Grammar | ReasoningRules:
    """Compiles a grammar of any kind, or bounds of reasoning with a grammar for the answer. Raises InvalidGrammar."""
    if kind != REASONING:
        return compiler.compile(kind, source)
    try:
        bounds = _BOUNDS.decode(source)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidGrammar(f"invalid bounds of reasoning: {error}") from None
    marks = bounds.tokens
    if not all(0 <= token < 32 * compiler.words for token in (marks.open, marks.close)):
        raise InvalidGrammar(f"marks of reasoning that are not tokens: {marks.open} and {marks.close}")
    answer = compiler.compile(bounds.grammar_kind, bounds.grammar) if bounds.grammar else None
    return ReasoningRules(marks, bounds.budget, answer, compiler.words)


def open_model(path: Path, vocab_size: int) -> Compilations:
    """Compilations for the model at `path`. The thread prepares the tokens, which takes about a second."""
    try:
        tokens = vocabulary.read(path, vocab_size)
    except UnreadableVocabulary as error:
        _log.warning("no structured output: %s", error)
        return Compilations(None)
    return Compilations(lambda: Compiler(tokens))
