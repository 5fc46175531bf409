"""Finds objectives that even an idle worker misses, by the cost of its steps. Pure.

More workers cannot meet these objectives, so no term requests workers for them; they are only reported.
"""

from collections.abc import Mapping, Sequence

from legato_operator.api import roles
from legato_operator.api.resources import Spec
from legato_operator.autoscaler.signals import DecodeCost, PrefillCost, PromptLengths, Signals, WorkerSignals

TTFT, TPOT = "slo.ttft", "slo.tpot"
NEGLIGIBLE = 1e-3  # share of a prompt's time up to which attention is not reported


def unmet(signals: Signals, pool: str, spec: Spec) -> Mapping[str, str]:
    """Returns the objectives that the workers of this pool cannot meet, each with the arithmetic."""
    workers = signals.of_pool("prefill" if pool == roles.PREFILL else "decode")
    texts: dict[str, str] = {}
    if pool == roles.PREFILL or not spec.disaggregated:
        arrived = signals.traffic.arrivals if signals.traffic is not None else ()
        cost = _prefill_cost(workers, arrived) or _prefill_cost(signals.of_pool("decode"), arrived)
        texts |= {TTFT: unmet_ttft(spec.slo.ttft, cost, arrived) if cost is not None else ""}
    if pool != roles.PREFILL:
        step = _decode_cost(workers)
        texts |= {TPOT: unmet_tpot(spec.slo.tpot, step) if step is not None else ""}
    return {objective: text for objective, text in texts.items() if text}


def unmet_tpot(tpot: float, cost: DecodeCost) -> str:
    """Returns the reason why more workers cannot meet the objective: a decode step of one sequence takes longer.

    Empty if it does not, or if all measured steps had several sequences.
    """
    seconds = cost.seconds(1, 0)
    if seconds <= tpot or cost.only_rows > 1:
        return ""
    return (
        f"{TPOT} is {_ms(tpot)}, but a decode step of one sequence takes {_ms(seconds)} "
        f"({_ms(cost.fixed)} a step + {_ms(cost.per_row)} a sequence): more workers cannot meet it"
    )


def unmet_ttft(ttft: float, cost: PrefillCost, prompts: Sequence[PromptLengths] = ()) -> str:
    """Returns the reason why more workers cannot meet the objective: half of the `prompts` take longer on an idle one.

    Without known prompts, a prompt of one token is assumed. Empty if the objective can be met.
    """
    tokens = _usual(prompts)
    seconds = cost.alone(tokens)
    if seconds <= ttft:
        return ""
    long = f"prefill of {_counted(tokens, 'token')} takes {_ms(seconds)} on an idle worker ({_parts(cost, tokens)})"
    if tokens == 1:
        return f"{TTFT} is {_ms(ttft)}, but {long}: more workers cannot meet it"
    return (
        f"{TTFT} is {_ms(ttft)}, but {long}, and half of the prompts are as long or longer: "
        "more workers cannot meet it for these"
    )


def _usual(prompts: Sequence[PromptLengths]) -> int:
    """Returns the number of uncached tokens that at least half of the prompts reach."""
    left = sum(bucket.requests for bucket in prompts) / 2
    for bucket in sorted(prompts, key=lambda bucket: -bucket.least):
        left -= bucket.requests
        if left <= 0:
            return max(1, bucket.least)
    return 1


def _parts(cost: PrefillCost, tokens: int) -> str:
    """Returns the parts of a prompt's time as text, without negligible attention."""
    token_seconds = max(0.0, cost.per_token - cost.per_step / cost.chunk_tokens)
    attention = cost.per_pair * tokens * (tokens + 1) / 2
    parts = [f"{_counted(cost.steps(tokens), 'step')} x {_ms(cost.per_step)}"] if cost.per_step else []
    parts.append(f"{_counted(tokens, 'token')} x {_ms(token_seconds)}")
    parts += [f"{_ms(attention)} of attention"] if attention > NEGLIGIBLE * cost.alone(tokens) else []
    return " + ".join(parts)


def _prefill_cost(workers: Sequence[WorkerSignals], prompts: Sequence[PromptLengths]) -> PrefillCost | None:
    """Returns the median cost for a usual prompt, so that one worker's bad fit does not matter."""
    tokens = _usual(prompts)
    costs = [worker.prefill_cost for worker in workers if worker.prefill_cost is not None]
    costs.sort(key=lambda cost: cost.alone(tokens))
    return costs[(len(costs) - 1) // 2] if costs else None


def _decode_cost(workers: Sequence[WorkerSignals]) -> DecodeCost | None:
    costs = [worker.decode_cost for worker in workers if worker.decode_cost is not None]
    costs.sort(key=lambda cost: cost.seconds(1, 0))
    return costs[(len(costs) - 1) // 2] if costs else None


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"
