"""Measures the cost of routing a request in the gateway, without tokenization: hashing, index match, choice.

    .venv/bin/python benchmarks/gateway/routing.py [--repeat 200]

The last column is what routing a request costs: match, predictions and choice.

For prompts of 1k, 8k and 100k tokens, 8 prefill and 8 decode workers and blocks of 16 tokens; each worker holds a
different share of the prompt, among 20,000 blocks of other prompts. Prints medians in microseconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from legato_gateway.routing.choose import Policy, choose
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.routing.predicted_prefixes import PredictedPrefixes
from legato_protocol.wire import block_hash
from legato_protocol.wire.kv_events import Snapshot
from legato_protocol.wire.load import DecodeCoefficients, PrefillCoefficients
from legato_protocol.wire.packed_tokens import pack_tokens

BLOCK = 16
OTHER_BLOCKS = 20_000
POLICY = Policy()
PROMPTS = (1_000, 8_000, 100_000)


def hashes(tokens: int, seed: int) -> list[bytes]:
    packed = pack_tokens([(seed * 7919 + i) % 49_152 for i in range(tokens)])
    return block_hash.chain(packed, BLOCK, block_hash.root("revision"))


def fleet() -> FleetSnapshot:
    def view(name: str, i: int) -> WorkerView:
        role = "prefill" if name == "prefill" else "decode"
        load = {"queue_tokens": 700 * i, "running": i, "free_blocks": 100_000 - 900 * i}
        sizes = {"block_size": BLOCK, "num_blocks": 100_000, "max_length": 200_000}
        costs = {
            "prefill_rate": 9_000.0,
            "prefill_cost": PrefillCoefficients(0.006, 1e-4, 1e-8, 2048),
            "step_time": 0.02,
            "decode_cost": DecodeCoefficients(0.01, 1e-4, 1e-7),
        }
        return WorkerView(f"{name}-{i}", role, "e", "revision", **sizes, **load, **costs, address=b"link")

    return FleetSnapshot(tuple(view(name, i) for name in ("prefill", "decode") for i in range(8)))


def index_of(prompt: list[bytes], snapshot: FleetSnapshot) -> KVIndex:
    """Worker number i of n holds the first (i + 1) / n of the prompt."""
    index = KVIndex(max_blocks=1_000_000)
    for i, worker in enumerate(snapshot.workers):
        share = prompt[: len(prompt) * (i + 1) // len(snapshot.workers)]
        held = share + hashes(OTHER_BLOCKS * BLOCK, i + 1)
        index.expect(worker.name, "e")
        index.apply(worker.name, Snapshot("e", 0, 0, True, block_hash.join(held)))
        while index.read_on(worker.name):
            pass
    return index


def median(repeat: int, action: Callable[[], object]) -> float:
    """Microseconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=200)
    repeat = parser.parse_args().repeat
    snapshot = fleet()
    print(f"{'prompt tokens':>14} {'hashing':>10} {'first match':>12}", end="")
    print(f" {'match':>8} {'predicted':>10} {'choose':>8} {'together':>9}  µs")
    for tokens in PROMPTS:
        prompt, need = hashes(tokens, 0), Need("id", tokens, 256)
        index = index_of(prompt, snapshot)
        hashing = median(max(3, repeat // 20), lambda tokens=tokens: hashes(tokens, 0))
        first = median(1, lambda index=index, prompt=prompt: index.match(prompt))
        matching = median(repeat, lambda index=index, prompt=prompt: index.match(prompt))
        match = index.match(prompt)
        predicted = PredictedPrefixes()
        for i in range(16):
            predicted.add(f"r{i}", "prefill-0", "e", prompt, 1.0)
        predicting = median(repeat, lambda predicted=predicted, prompt=prompt: predicted.match(prompt, 0.0))
        soon = {"prefill-0": len(prompt)}
        choosing = median(repeat, lambda need=need, match=match, soon=soon: choose(need, snapshot, match, POLICY, soon))
        row = f"{tokens:>14} {hashing:>10.0f} {first:>12.0f} {matching:>8.1f} {predicting:>10.1f} {choosing:>8.1f}"
        print(f"{row} {matching + predicting + choosing:>9.1f}")


if __name__ == "__main__":
    main()
