"""Grammars compiled in a thread of their own, so that neither a step nor the loop waits for one."""

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
from legato_protocol.reasoning import ReasoningBounds
from legato_protocol.sampling_params import GRAMMAR_KINDS, REASONING, SamplingParams

MOST_KEPT = 128  # compiled grammars, the least recently used is forgotten first

_log = logging.getLogger(__name__)
Compiled = Grammar | ReasoningRules | str  # the last: why it cannot be compiled
_BOUNDS = msgspec.json.Decoder(ReasoningBounds)


class Compilations:
    """Used by the core's loop alone. `kinds` are those of the grammars that it compiles; none without a vocabulary."""

    def __init__(self, make: Callable[[], Compiler] | None) -> None:
        self.kinds: tuple[str, ...] = GRAMMAR_KINDS if make is not None else ()
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._compiler = self._thread.submit(make) if make is not None else None
        self._kept: OrderedDict[bytes, Compiled] = OrderedDict()
        self._under_way: set[bytes] = set()
        self._done: Mailbox[tuple[bytes, Compiled]] = Mailbox()

    def ask(self, params: SamplingParams) -> Compiled | None:
        """The grammar of these parameters, compiled, or why it cannot be; None while it is being compiled."""
        if params.grammar_kind not in self.kinds:
            return f"grammars of kind {params.grammar_kind[:32]!r} are not supported here"
        digest = sha256(f"{params.grammar_kind}\0{params.grammar}".encode()).digest()
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return self._kept[digest]
        if digest not in self._under_way:
            self._under_way.add(digest)
            self._thread.submit(self._compile, digest, params.grammar_kind, params.grammar)
        return None

    def take_done(self) -> bool:
        """Whether some were compiled since the last time."""
        done = self._done.take()
        for digest, found in done:
            self._under_way.discard(digest)
            self._kept[digest] = found
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return bool(done)

    def fileno(self) -> int:
        """Readable when a grammar was compiled."""
        return self._done.fileno()

    def _compile(self, digest: bytes, kind: str, source: str) -> None:
        assert self._compiler is not None
        try:
            found: Compiled = compiled(self._compiler.result(), kind, source)
        except InvalidGrammar as error:
            found = str(error)
        except Exception as error:  # a request whose grammar is never ready would wait until its deadline
            _log.exception("a grammar cannot be compiled")
            found = f"it cannot be compiled: {error!r}"
        self._done.put((digest, found))


def position(found: Grammar | ReasoningRules) -> Constraint:
    """Where a sequence without output is in it."""
    return ReasoningPosition(found) if isinstance(found, ReasoningRules) else GrammarPosition(found)


def compiled(compiler: Compiler, kind: str, source: str) -> Grammar | ReasoningRules:
    """A grammar of any kind, or the bounds of reasoning with one behind it. Raises InvalidGrammar."""
    if kind != REASONING:
        return compiler.compile(kind, source)
    try:
        bounds = _BOUNDS.decode(source)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidGrammar(f"no bounds of reasoning: {error}") from None
    marks = bounds.tokens
    if not all(0 <= token < 32 * compiler.words for token in (marks.open, marks.close)):
        raise InvalidGrammar(f"marks of reasoning that are no tokens: {marks.open} and {marks.close}")
    answer = compiler.compile(bounds.grammar_kind, bounds.grammar) if bounds.grammar else None
    return ReasoningRules(marks, bounds.budget, answer, compiler.words)


def of_model(path: Path, vocab_size: int) -> Compilations:
    """For the model at `path`. The tokens are prepared in the thread, which takes about a second."""
    try:
        tokens = vocabulary.read(path, vocab_size)
    except UnreadableVocabulary as error:
        _log.warning("no structured output: %s", error)
        return Compilations(None)
    return Compilations(lambda: Compiler(tokens))
