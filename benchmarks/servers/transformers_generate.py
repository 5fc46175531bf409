"""Hugging Face transformers on the same weights: one static batch per concurrency, the best it can do.

Prints output tokens/s, time to first token (prefill of the whole batch) and time per output token, as `compare.py`
does for servers; there is no HTTP in it, which favours it.
"""

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="Hugging Face folder")
    parser.add_argument("--shape", action="append", help="input/output tokens (default: 256/64 and 1024/32)")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    print("| in/out | batch | out tok/s | TTFT ms | TPOT ms |\n| --- | --- | --- | --- | --- |")
    for shape in args.shape or ["256/64", "1024/32"]:
        inputs, outputs = map(int, shape.split("/"))
        for batch in map(int, args.batch.split(",")):
            timings = [timed(model, batch, inputs, outputs) for _ in range(args.repeats)]
            first, whole = (statistics.median(t[i] for t in timings) for i in (0, 1))
            tpot = (whole - first) / (outputs - 1)
            print(
                f"| {shape} | {batch} | {batch * outputs / whole:.1f} | {first * 1e3:.0f} | {tpot * 1e3:.1f} |",
                flush=True,
            )


@torch.inference_mode()
def timed(model: torch.nn.Module, batch: int, inputs: int, outputs: int) -> tuple[float, float]:
    """Seconds until the first token and until the last one of a greedy batch."""
    ids = torch.randint(100, 40_000, (batch, inputs))
    start = time.perf_counter()
    out = model(ids, use_cache=True, logits_to_keep=1)
    first = time.perf_counter() - start
    for _ in range(outputs - 1):
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
    return first, time.perf_counter() - start


if __name__ == "__main__":
    main()
