"""Greedy float32 output under a grammar, served by a real core, is what transformers' logits give once they are masked
with the same grammar, token by token."""

import json
import time
from dataclasses import replace

import interpreted_models
import lora_folders
import numpy as np
import pytest
import torch
from grammar_vocabulary import COMPILER, END, TOKENS, text

from legato_engine.grammars.compilations import Compilations
from legato_engine.runner.runner import Runner
from legato_grammar import structural_tag
from legato_protocol.sampling_params import CHOICE, JSON_SCHEMA, REGEX, RULES
from legato_protocol.stream import Generate

PATIENCE = 250.0  # seconds; only a hang reaches it
MOST = 40  # tokens
CHECKPOINT = lora_folders.RandomCheckpoint(replace(interpreted_models.LLAMA, vocab_size=len(TOKENS)))
TIE = 2e-3
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4},
        "kind": {"enum": ["é", "日本", None]},
    },
    "required": ["name", "sizes", "kind"],
    "additionalProperties": False,
}
TAGGED = {
    "type": "triggered_tags",
    "triggers": ["<f="],
    "tags": [{"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}],
    "at_least_one": True,
    "stop_after_first": True,
}
CITIES = ["Berlin", "Paris", "Parma", "Rome"]
GRAMMARS = {
    "schema": (JSON_SCHEMA, json.dumps(SCHEMA)),
    "regex": (REGEX, "[A-Z][a-z]{2,9}( [a-z]{1,9}){1,12}\\."),
    "choice": (CHOICE, json.dumps(CITIES)),
    "tagged": (RULES, structural_tag.rules({"format": TAGGED})),
}


@pytest.fixture
def masked(oracle_of):
    """The check: each token has the best logit of those that the grammar allows then, or is tied with it."""
    oracle = oracle_of(CHECKPOINT)

    def check(prompt, output, kind, source):
        matcher = COMPILER.compile(kind, source).matcher()
        allowed = np.zeros((len(output), 32 * COMPILER.words), bool)
        for row, token in zip(allowed, output, strict=True):
            row[:] = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little").astype(bool)
            row[END] = matcher.accepting
            assert token == END or matcher.consume([token])
        assert not allowed.all()
        logits = oracle.logits(prompt, output)
        logits[~torch.from_numpy(allowed[:, : logits.shape[1]])] = -torch.inf
        behind = logits.max(-1).values - logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert behind.max() <= TIE, (int(behind.argmax()), float(behind.max()))

    return check


def serve(world, worker, ids):
    give_up = time.monotonic() + PATIENCE
    while not all(worker.finished(id=id) for id in ids):
        assert time.monotonic() < give_up, "it hangs"
        world.run(1)
        assert not worker.failures()
    return [worker.tokens(id) for id in ids]


def test_greedy_output_is_that_of_masked_logits(world, masked):
    limits = {"max_length": 512, "max_running": 16, "max_waiting": 16, "chunk": 512}
    runner = Runner.load(CHECKPOINT, block_size=16, kv_cache_bytes=4 << 20, dtype="float32", threads=1, max_length=512)
    worker = world.worker("u", runner=runner, grammars=Compilations(lambda: COMPILER), link=False, **limits)
    prompts = interpreted_models.prompts(256, (5, 21, 3))
    asked = [(str(n), prompts[n % 3], *GRAMMARS[name]) for n, name in enumerate(GRAMMARS)]
    for id, prompt, kind, source in asked:
        params = {"grammar_kind": kind, "grammar": source, "temperature": 0.0, "stop_token_ids": (END,)}
        worker.tell(Generate(id, 1, world.sequence(prompt, max_tokens=MOST, **params)))
    outputs = serve(world, worker, [id for id, *_ in asked])
    for (_, prompt, kind, source), output in zip(asked, outputs, strict=True):
        masked(prompt, output, kind, source)
    chosen = outputs[list(GRAMMARS).index("choice")]
    assert chosen[-1] == END
    assert text(chosen[:-1]).decode() in CITIES
