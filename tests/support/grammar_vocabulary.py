"""A vocabulary for grammars, without a model: all bytes, pieces of JSON, and tokens that end an answer."""

from collections.abc import Sequence

import torch

from legato_engine.grammars.position import GrammarPosition
from legato_engine.sampling import constrain
from legato_engine.sampling.sampler import sample
from legato_engine.scheduler.batch import Draw, Sampled
from legato_grammar.guidance import Compiler
from legato_grammar.vocabulary import Vocabulary
from legato_protocol.sampling.parameters import SamplingParams

PIECES = (
    b'"',
    b'":',
    b'","',
    b'"}',
    b"}",
    b"]",
    b"},",
    b"null",
    b"true",
    b"12",
    b'"a',
    b'"b":',
    b"[]",
    b"{}",
    b" ",
    b"\n",
)
PIECES += ("é".encode(), "日".encode(), "日".encode()[:2], b"abc", b'{"', b"]}", b"0.5")
TOKENS = (*(bytes([byte]) for byte in range(256)), *PIECES, b"<end>", b"<eot>")
END, EOT = len(TOKENS) - 2, len(TOKENS) - 1
VOCABULARY = Vocabulary(TOKENS, frozenset({END, EOT}))
COMPILER = Compiler(VOCABULARY)
PROMPT = (1, 2, 3)


def text(tokens: Sequence[int]) -> bytes:
    return b"".join(TOKENS[token] for token in tokens if token not in (END, EOT))


def step(position: GrammarPosition, output: Sequence[int], logits: torch.Tensor, params: SamplingParams) -> Sampled:
    """Samples one token, as the runner does for one sequence."""
    tokens = [*PROMPT, *output]
    draw = Draw(0, len(tokens), params, tokens, len(PROMPT), position)
    masks = constrain.masks(constrain.due([draw], [0]))
    constrain.apply(logits, masks)
    if why := constrain.faults(masks).get(0):
        return Sampled(0, None, why)
    return sample(logits, [draw], [0])[0]
