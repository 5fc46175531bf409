"""Tokens per second of a model on two cores: one rank with two threads, and two ranks with one thread each.

Eight prompts of 1,024 tokens in chunks of 512, then 32 tokens of all together, without scheduler and server. The model
has the shapes of SmolLM2-135M, but for 8 attention heads and 4 KV heads, and random weights.

python benchmarks/engine/ranks.py [ROUNDS]
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file

from legato_engine.models.config import from_huggingface
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, Draw, Row
from legato_engine.weights.expected import expected_shapes
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling.parameters import SamplingParams

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 64, "num_hidden_layers": 30, "intermediate_size": 1536, "vocab_size": 49152,
    "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
PROMPT, OUTPUT, SEQUENCES, CHUNK, BLOCK = 1024, 32, 8, 512, 16
GREEDY = SamplingParams(max_tokens=OUTPUT, seed=0, temperature=0.0)


def write(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    draw = torch.Generator().manual_seed(7)
    shapes = expected_shapes(from_huggingface(CONFIG, "here"))
    weights = {name: torch.randn(shape, generator=draw) * 0.05 for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")


def measure(folder: Path, ranks: int) -> tuple[float, list[int]]:
    """Seconds for all sequences, after a first round that warms up, and the tokens of the first one."""
    options = RunnerOptions(
        block_size=BLOCK, kv_cache_bytes=1 << 30, dtype="float32", threads=2 // ranks, max_length=2048, tensor=ranks,
        max_batch=SEQUENCES, chunk_tokens=CHUNK,
    )  # fmt: skip
    runner = Runner.load(open_weights(folder), options)
    seconds = 0.0
    for _ in range(2):
        began, tokens = time.perf_counter(), compute(runner)
        seconds = time.perf_counter() - began
    return seconds, tokens


def compute(runner: Runner) -> list[int]:
    held = (PROMPT + OUTPUT) // BLOCK + 1
    prompts = [[(7 * i * i + 13 * i + each) % 49152 for i in range(PROMPT)] for each in range(SEQUENCES)]
    tables, known = [list(range(i * held, (i + 1) * held)) for i in range(SEQUENCES)], [list(each) for each in prompts]

    def draw(each: int) -> tuple[Draw, ...]:
        return (Draw(0, len(known[each]), GREEDY, known[each], PROMPT),)

    for each in range(SEQUENCES):
        for start in range(0, PROMPT, CHUNK):
            last = start + CHUNK == PROMPT
            row = Row(prompts[each][start : start + CHUNK], start, tables[each], draw(each) if last else ())
            output = runner.step(Batch((row,)))
        known[each].append(output[0][0].token)
    for _ in range(OUTPUT - 1):
        rows = tuple(
            Row([known[each][-1]], len(known[each]) - 1, tables[each], draw(each)) for each in range(SEQUENCES)
        )
        for each, drawn in enumerate(runner.step(Batch(rows))):
            known[each].append(drawn[0].token)
    return known[0][PROMPT:]


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]), int(sys.argv[3]))))
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    times: dict[int, list[float]] = {1: [], 2: []}
    outputs = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for _ in range(rounds):
            for ranks, seconds in times.items():
                command = [sys.executable, __file__, "--measure", folder, str(ranks)]
                took, tokens = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                seconds.append(took)
                outputs.append(tokens)
    assert all(tokens == outputs[0] for tokens in outputs), "the tokens differ"
    rates = {ranks: SEQUENCES * OUTPUT / median(seconds) for ranks, seconds in times.items()}
    for ranks, rate in rates.items():
        print(
            f"{ranks} rank{'s' * (ranks > 1)}: {rate:.1f} tok/s ({', '.join(f'{each:.2f}' for each in times[ranks])} s)"
        )
    print(f"2 ranks ÷ 1 rank: {rates[2] / rates[1]:.2f}")


if __name__ == "__main__":
    main()
