"""Arguments of `legato bench`; importing this costs nothing, so that `legato --help` stays quick."""

import argparse
from functools import partial

from legato_protocol.settings import flags, values

WORKLOADS = ("random", "shared-prefix", "trace")
SAMPLINGS = ("greedy", "sampled", "penalized")
_MOST = 10**9


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or not text.partition("://")[2] or not text.isprintable():
        raise values.invalid("URL", text, "http://HOST:PORT or https://HOST")
    return text


def _token_ids(text: str) -> tuple[int, int]:
    try:
        first, last = (values.whole(part, 0, _MOST) for part in text.split(","))
        if first >= last:
            raise ValueError
    except ValueError:
        raise values.invalid("range", text, f"FIRST,LAST such as 100,40000; 0 to {_MOST}") from None
    return first, last


_COUNT = flags.whole("COUNT", 1, _MOST)
_TOKENS = flags.whole("TOKENS", 1, _MOST)
_TOKEN_IDS = flags.ValueKind("FIRST,LAST", _token_ids, lambda ids: f"{ids[0]},{ids[1]}")
_RATE = flags.real("RATE", 0.001, 100_000)


def _phase(text: str) -> tuple[float, float]:
    rate, colon, seconds = text.partition(":")
    if not colon:
        raise values.invalid("phase", text, "RATE:DURATION, such as 8:60s")
    return _RATE.parse(rate), flags.DURATION.parse(seconds)


_PHASE = flags.ValueKind("RATE:DURATION", _phase, lambda phase: f"{phase[0]:g}:{flags.DURATION.text(phase[1])}")
HELP = "measure an OpenAI-compatible server"
DESCRIPTION = "Drives a server with streamed completions and prints TTFT, TPOT, ITL, throughput and goodput."


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    add = partial(flags.option, parser)
    add("--url", kind=flags.ValueKind("URL", _url), default="http://127.0.0.1:8080", help="base URL of the server")
    add("--model", kind=flags.text("NAME"), help="name of the model; the first one that the server lists if not given")
    add("--workload", kind=flags.one_of("WORKLOAD", WORKLOADS), default="random", help=", ".join(WORKLOADS))
    several = "if not given; one or several with --matrix"
    add("--input-tokens", kind=flags.list_of(_TOKENS), help=f"tokens of each prompt; 256 {several}")
    add("--output-tokens", kind=flags.list_of(_TOKENS), help=f"tokens of each answer; 64 {several}")
    add("--concurrency", kind=flags.list_of(_COUNT), help="closed loop: requests in flight; 1,8,32 if not given")
    add("--rate", kind=flags.list_of(_RATE), help="open loop: requests per second, such as 0.5,1,2")
    add("--burst", kind=flags.list_of(_PHASE), help="open loop whose rate steps, such as 1:30s,8:1m,1:1m")
    asked = "burst, matrix, profile"
    add("--service", kind=flags.text("NAME"), help=f"{asked}: name of the service, if several are running")
    add(
        "--namespace", kind=flags.text("NAMESPACE"), help=f"{asked}: its namespace on Kubernetes; otherwise `legato up`"
    )
    add(
        "--requests",
        kind=_COUNT,
        help="requests per load; if not given, 3 × concurrency, at least 8 (with --matrix: no limit)",
    )
    add("--warmup", kind=flags.whole("COUNT", 0, _MOST), default=1, help="uncounted requests before each load")
    add("--prefixes", kind=_COUNT, default=4, help="shared-prefix: number of different prefixes")
    add("--prefix-share", kind=flags.real("SHARE", 0, 1), default=0.75, help="shared-prefix: shared part of a prompt")
    add("--trace", kind=flags.FILE, help="trace: a file in the format of Mooncake (JSON lines) or Azure (CSV)")
    add("--context", kind=_TOKENS, default=4096, help="trace: scale lengths to fit this many tokens")
    add("--speed", kind=flags.real("FACTOR", 0.001, 100_000), default=1.0, help="trace: play it this many times faster")
    add("--token-ids", kind=_TOKEN_IDS, default=(100, 40_000), help="range of random token ids")
    default = "if not given (with --matrix, the manifest's)"
    add("--slo-ttft", kind=flags.DURATION, help=f"objective for the time to the first token; 1s {default}")
    add("--slo-tpot", kind=flags.DURATION, help=f"objective for the time per output token; 100ms {default}")
    add("--timeout", kind=flags.DURATION, default=600.0, help="fail a request after this long without a byte")
    add("--seed", kind=flags.whole("NUMBER", 0, _MOST), default=0, help="seed of prompts and arrival times")
    parser.add_argument("--matrix", action="store_true", help="instead: many loads, and which meet the objectives")
    add("--sampling", kind=flags.list_of(flags.one_of("SAMPLING", SAMPLINGS)), help=f"matrix: {', '.join(SAMPLINGS)}")
    add("--cell", kind=flags.DURATION, default=10.0, help="matrix: longest time that a cell may take")
    add("--profile", kind=flags.FILE, help="instead: prompts and answers of many sizes, and a profile of the workers")
    add("--json", kind=flags.FILE, help="also write all figures to this file")


def run(args: argparse.Namespace) -> int:
    """Measures one load, or with --matrix every cell."""
    from legato_cli.bench import command, matrix_command

    return matrix_command.run(args) if args.matrix else command.run(args)
