"""Measures the cost of a schema: output tokens a second of a running service with and without one.

    legato up -f benchmarks/manifests/unified.yaml --port 8080
    python benchmarks/grammar/structured_output.py http://127.0.0.1:8080 --concurrency 1 8 32

The schema's answers are longer than `max_tokens`, so all requests have as many tokens. With and without one take
turns, round by round; the median of the rounds' ratios is shown. Prompts are new in every round.
"""

import argparse
import asyncio
import random
import statistics
import time

import httpx

NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9999}, "minItems": 1000}
OBJECTS = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["cat", "dog", "bird"]}},
        "required": ["name", "kind"],
        "additionalProperties": False,
    },
}
SCHEMAS = {"numbers": NUMBERS, "objects": OBJECTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2, help="of each client")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| clients | schema | tok/s without | tok/s with | ratio |\n| --- | --- | --- | --- | --- |")
    for concurrency in args.concurrency:
        for name, schema in SCHEMAS.items():
            pairs = asyncio.run(_rounds(args, concurrency, schema))
            without, rate = (statistics.median(rates) for rates in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            print(f"| {concurrency} | {name} | {without:.0f} | {rate:.0f} | {ratio:.2f} |", flush=True)


async def _rounds(args: argparse.Namespace, concurrency: int, schema: object) -> list[tuple[float, float]]:
    async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
        await _rate(http, args, 1, schema)  # the first compiles it
        return [
            (await _rate(http, args, concurrency, None), await _rate(http, args, concurrency, schema))
            for _ in range(args.rounds)
        ]


async def _rate(http: httpx.AsyncClient, args: argparse.Namespace, clients: int, schema: object) -> float:
    """Returns output tokens a second of `clients` clients, each of which sends its next request after an answer."""
    began = time.perf_counter()
    answers = await asyncio.gather(*(_client(http, args, schema) for _ in range(clients)))
    return sum(answers) / (time.perf_counter() - began)


async def _client(http: httpx.AsyncClient, args: argparse.Namespace, schema: object) -> int:
    tokens = 0
    for _ in range(args.requests):
        body = {
            "prompt": [random.randrange(1000, 40000) for _ in range(32)],
            "max_tokens": args.output_tokens,
            "ignore_eos": True,
            "temperature": 1.0,
        }
        if schema is not None:
            body["structured_outputs"] = {"json": schema}
        answer = (await http.post("/v1/completions", json=body)).raise_for_status().json()
        tokens += answer["usage"]["completion_tokens"]
    return tokens


if __name__ == "__main__":
    main()
