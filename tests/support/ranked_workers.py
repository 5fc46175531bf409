"""A tiny model with adapters, what it computes without ranks, and workers that compute it with ranks in threads."""

from dataclasses import dataclass

import tiny_llama
import torch
from lora_folders import write as write_adapter
from mortal_ranks import Group

from legato_engine.adapters.folder import open_adapter
from legato_engine.runner.plan import AdapterLimits, RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Draw, Row
from legato_engine.weights.expected import projections
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling.parameters import SamplingParams

BLOCK, LENGTH = 4, 64  # tokens of a block, and of the longest sequence
ADAPTERS = ("a", "b")
TIE = 1e-5  # logits of other degrees differ by less


class TinyModel:
    """A model with adapters, and what one worker without ranks computes."""

    def __init__(self, folder):
        tiny_llama.write(folder, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1, head_dim=32)
        self.checkpoint = open_weights(folder)
        fitting = projections(self.checkpoint.config)
        self.pairs = {
            name: open_adapter(write_adapter(folder / name, self.checkpoint.config, seed=seed), fitting, 4, None).read()
            for seed, name in enumerate(ADAPTERS)
        }
        self.alone = self.load(1)
        self.adapters = {name: self.alone.adapter(pairs) for name, pairs in self.pairs.items()}
        self._next = {}

    def load(self, degree):
        limits = AdapterLimits(1, 4, 10_000)
        sizes = {"block_size": BLOCK, "kv_cache_bytes": 24 * 2048, "max_length": LENGTH, "chunk_tokens": 16}
        options = RunnerOptions(dtype="float32", threads=1, tensor=degree, adapters=limits, max_batch=8, **sizes)
        return Runner.load(self.checkpoint, options)

    def continuation(self, prompt, adapter, count):
        tokens = list(prompt)
        for _ in range(count):
            key = (adapter, *tokens)
            if key not in self._next:
                self._next[key] = self._compute(tokens, self.adapters.get(adapter))
            tokens.append(self._next[key])
        return tokens[len(prompt) :]

    def _compute(self, tokens, adapter):
        greedy = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
        blocks = list(range(-(-len(tokens) // BLOCK)))
        draws = (Draw(0, len(tokens), greedy, tokens, len(tokens)),)
        with torch.inference_mode():
            (logits,) = self.alone.logits((Row(tokens, 0, blocks, draws, adapter=adapter),))
        best = logits.topk(2)
        assert best.values[0] - best.values[1] > TIE, "a tie: choose other weights"
        return int(best.indices[0])


@dataclass(eq=False)
class Ranked:
    """A worker and its ranks."""

    worker: object
    group: Group

    def turn(self):
        """As `Worker.turn`, once threads have ended what they do. Raises CoreLost."""
        resident = self.worker.core._handler.adapters
        if resident._loading:
            loaded = resident._thread.submit(int)
            loaded.add_done_callback(lambda _: self.group.notify())
            self.group.wait(loaded.done)
        try:
            self.worker.turn()
        except OSError:  # a message to a rank that has died, whose thread has not reported it yet
            self.group.wait(lambda: False)
        self.worker.check()

    @property
    def is_quiet(self):
        worker = self.worker
        quiet = worker.used == worker.agent.pending() == 0 and worker.scheduler.idle
        return quiet and self.group.compute.idle and not self.group.is_standing

    def close(self):
        self.worker.agent.close()
        self.worker.end.close()
