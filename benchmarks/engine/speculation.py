#!/usr/bin/env python3
"""Measures speculation: decoded tokens a second of one sequence without drafts and with PromptLookup or a draft model.

    python benchmarks/engine/speculation.py --threads 2 --model large.gguf --draft small.gguf

Two schedulers take turns on one runner, prompt by prompt, so that other work on the machine slows both. Each prompt has
a round of its own for either; the medians of the rounds' rates and of their ratios are shown. The texts are the same,
which is checked. Code edits and summaries are greedy; random text is sampled at temperature 1 after random tokens.
"""

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from legato_cli.models import model
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.runner.drafting.draft_model import DraftModel
from legato_engine.runner.drafting.opening import open_draft
from legato_engine.runner.drafting.speculating_runner import SpeculatingRunner
from legato_engine.runner.interface import StepRunner
from legato_engine.runner.plan import RunnerOptions, draft_options, plan_draft
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.scheduler.speculation import drafters
from legato_engine.scheduler.speculation.model_drafter import DraftLimits
from legato_engine.weights.opening import open_weights
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_protocol.sampling.parameters import SamplingParams

BLOCK_SIZE, MAX_LENGTH = 16, 2048
MOST = 64  # running sequences
ROOT = Path(__file__).parents[2]
SOURCES = ("legato_engine/mailbox.py", "legato_engine/kvcache/groups.py", "legato_engine/sampling/uniform.py")
PAGES = ("handoff.md", "admission.md", "autoscaling.md")


@dataclass(frozen=True)
class Rates:
    """Decoded tokens per second for one prompt, without drafts and with, and the share of drafts that were right."""

    plain: float
    drafted: float
    accepted: float


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        path = model.resolve(args.model, print)
        options = RunnerOptions(
            block_size=BLOCK_SIZE, kv_cache_bytes=1 << 28, dtype=args.dtype, threads=args.threads,
            max_length=MAX_LENGTH, drafts=args.tokens,
        )  # fmt: skip
        checkpoint = open_weights(path)
        model_runner = Runner.load(checkpoint, options)
        model_runner.warm_up()
        self.runner: StepRunner = model_runner
        self.draft: DraftLimits | None = None
        if args.draft is not None:
            small = open_draft(model.resolve(args.draft, print), checkpoint)
            options = replace(options, draft=plan_draft(small, options))
            drafting = Runner.load(small, draft_options(options, model_runner.num_blocks, MAX_LENGTH, MOST))
            drafting.warm_up()
            made = DraftModel(drafting, checkpoint.config.vocab_size, small.config.vocab_size)
            self.runner, self.draft = SpeculatingRunner(model_runner, made), made.limits
        self.tokens = ModelTokenizer.load(path)
        self._clock = time.process_time if args.cpu_time else time.perf_counter
        self._salts = itertools.count()
        self._plain, self._drafting = self._scheduler(0), self._scheduler(args.tokens)

    def prompts(self, kind: str) -> list[list[int]]:
        source = random.Random(kind)
        if kind == "random text":
            return [[source.randrange(1000, 40000) for _ in range(64)] for _ in SOURCES]
        return [self._asked(kind, number) for number in range(len(SOURCES))]

    def _asked(self, kind: str, number: int) -> list[int]:
        """The answer to a code edit has its first lines already: this small model would rather talk about the file."""
        if kind == "summary":
            text = (ROOT / "docs" / PAGES[number]).read_text()[:3000]
            return self.tokens.encode_chat([{"role": "user", "content": f"Summarize this text:\n\n{text}"}])
        source = (ROOT / "engine" / SOURCES[number]).read_text()
        asked = f"Make every class of this file final, and answer with the whole file:\n\n```python\n{source}```"
        first = "".join(source.splitlines(keepends=True)[:6])
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": f"```python\n{first}"}]
        return self.tokens.encode_chat(messages, continued=True)

    def rates(self, prompt: Sequence[int], params: SamplingParams) -> Rates:
        plain, text, _ = self._generate(self._plain, prompt, params)
        drafted, same, accepted = self._generate(self._drafting, prompt, params)
        if text != same:
            place = next(i for i, (a, b) in enumerate(zip(text, same, strict=True)) if a != b)
            print(f"texts differ from token {place} on: logits of rows of several tokens differ in their last bits")
        return Rates(plain, drafted, accepted)

    def _scheduler(self, drafts: int) -> Scheduler:
        windows = self.runner.layout.windows
        limits = SchedulerLimits("unified", BLOCK_SIZE, max_length=MAX_LENGTH, windows=windows, drafts=drafts)
        pool = BlockPool(self.runner.num_blocks, EventLog("epoch"), windows, BLOCK_SIZE)
        method = "None" if not drafts else "PromptLookup" if self.draft is None else "Draft"
        return Scheduler(limits, pool, "revision", drafters.make(method, pool, BLOCK_SIZE, self.draft))

    def _generate(
        self, scheduler: Scheduler, prompt: Sequence[int], params: SamplingParams
    ) -> tuple[float, list[int], float]:
        """Tokens a second after the first one, all tokens, and the share of drafts that were right.

        The salt keeps the other scheduler's blocks, which are in the same arena, from being found.
        """
        request = Request("r", 1, list(prompt), len(prompt), params, 1e9, cache_salt=str(next(self._salts)))
        scheduler.add(request, self._clock())
        drafted = accepted = 0
        first = 0.0
        while (batch := scheduler.schedule(self._clock())) is not None:
            result = scheduler.process(batch, self.runner.step(batch), self._clock())
            scheduler.pool.events.take()
            first = first or (self._clock() if request.outputs else 0.0)
            drafted, accepted = drafted + result.drafted, accepted + result.accepted
        seconds = self._clock() - first
        output = request.tokens[len(prompt) :]
        return (len(output) - 1) / seconds, output, accepted / drafted if drafted else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="builtin:smollm2-135m-instruct", help="as `legato worker --model` (default: %(default)s)"
    )
    parser.add_argument("--draft", help="draft with this model, instead of with PromptLookup")
    parser.add_argument("--dtype", default="Auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=7, help="most drafts in a step (default: %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="with --threads 1: measure CPU seconds, where others use the machine, too",
    )
    args = parser.parse_args()
    bench = Bench(args)
    print(bench.runner.formats)
    print("| text | tok/s | with drafts | ratio (least, most) | accepted |\n| --- | --- | --- | --- | --- |")
    for kind, temperature in (("code edit", 0.0), ("summary", 0.0), ("random text", 1.0)):
        show(kind, list(measured(bench, kind, temperature, args)))


def measured(bench: Bench, kind: str, temperature: float, args: argparse.Namespace) -> Iterator[Rates]:
    for number in range(args.rounds):
        for prompt in bench.prompts(kind):
            params = SamplingParams(max_tokens=args.output_tokens, seed=number, temperature=temperature)
            yield bench.rates(prompt, params)


def show(kind: str, rates: Sequence[Rates]) -> None:
    ratios = [each.drafted / each.plain for each in rates]
    plain, drafted, accepted, ratio = (
        statistics.median(values)
        for values in (
            [each.plain for each in rates],
            [each.drafted for each in rates],
            [each.accepted for each in rates],
            ratios,
        )
    )
    print(
        f"| {kind} | {plain:.0f} | {drafted:.0f} | {ratio:.2f} ({min(ratios):.2f}, {max(ratios):.2f}) "
        f"| {100 * accepted:.0f} % |",
        flush=True,
    )


if __name__ == "__main__":
    main()
