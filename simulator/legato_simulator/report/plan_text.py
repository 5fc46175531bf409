"""A plan as text and JSON: a table of the options, and the reasons for the chosen one with their numbers."""

import dataclasses
from typing import Any

from legato_protocol.step_target import STEP_TARGET
from legato_simulator.baselines.tuning import ATTAINMENT
from legato_simulator.engine.result import Result
from legato_simulator.planner.estimates import ms
from legato_simulator.planner.headroom import MOST_LOAD
from legato_simulator.planner.plan import Option, ShapePlan
from legato_simulator.planner.shape import PoolLayout
from legato_simulator.planner.window import FEW, SHORT
from legato_simulator.report.table import markdown

EQUAL = 0.03  # difference between two loads that is below the search's precision
MOST_ROWS = 12
_COLUMNS = ("workers", "tensor", "chunk", "slo.tpot", "GPUs", "good", "good/s per GPU", "serves", "TTFT s", "TPOT ms")


def text(plan: ShapePlan) -> str:
    """Returns the table and the reasons."""
    parts = [about(plan), table(plan), *reasons(plan)]
    parts += [f"Not possible: {layout}: {reason}." for layout, reason in plan.refused.items()]
    return "\n\n".join(parts)


def about(plan: ShapePlan) -> str:
    """Returns the simulated part of the workload."""
    load, whole = plan.load, plan.load.whole
    of = f" (the busiest of {whole.arrivals[-1].at / 60:.0f} min)" if load.workload is not whole else ""
    few = f"; fewer than {FEW} requests give a rough plan" if load.requests < FEW else ""
    short = f"; in less than {SHORT} × slo.ttft, queues hide part of what a lasting rate needs"
    few += short if load.seconds < SHORT * plan.slo.ttft else ""
    return (
        f"{whole.name}: {load.requests} requests in {load.seconds / 60:.1f} min{of}, {load.rate:.3g} requests/s{few}. "
        f"Objectives: slo.ttft {ms(plan.slo.ttft)} and slo.tpot {ms(plan.slo.tpot)} for {ATTAINMENT:.0%} of the "
        f"requests; up to {_count(plan.gpus, 'GPU')}; {plan.simulations} simulations."
    )


def table(plan: ShapePlan) -> str:
    """Returns a row for each option; latencies are p50 / p99 at the workload's own rate."""
    return markdown([["", *_COLUMNS], *(_row(plan, option) for option in plan.options[:MOST_ROWS])])


def _row(plan: ShapePlan, option: Option) -> list[str]:
    shape, result = option.shape, option.result
    mark = ("chosen" if option.meets else "closest") if option is plan.chosen else "" if option.meets else "misses"
    serves = f"{'≥ ' if option.load >= MOST_LOAD else ''}{option.load:.2f} ×" if option.load else ""
    return [
        mark,
        shape.workers,
        _degrees(shape.layout),
        str(shape.chunk),
        ms(shape.tpot),
        str(shape.gpus),
        f"{result.attainment:.1%}",
        f"{plan.goodput(option):.3f}",
        serves,
        f"{result.ttft.p50:.2f} / {result.ttft.p99:.2f}",
        f"{result.tpot.p50 * 1000:.1f} / {result.tpot.p99 * 1000:.1f}",
    ]


def reasons(plan: ShapePlan) -> list[str]:
    """Returns paragraphs: the answer, the workload's work, and the distance of the second."""
    if not plan.options:
        return ["No shape can be simulated."]
    if not plan.chosen.meets:
        return [_no_shape(plan), _work(plan)]
    return [_answer(plan), _work(plan), *_others(plan)]


def _answer(plan: ShapePlan) -> str:
    chosen, shape = plan.chosen, plan.chosen.shape
    pools = "One pool" if shape.layout.unified else "Separate pools"
    return (
        f"{pools}: {shape.workers} ({_count(shape.gpus, 'GPU')}) serves this workload with the fewest GPUs of all "
        f"simulated shapes, and {plan.goodput(chosen):.3f} good requests/s per GPU. It would serve these "
        f"requests at up to {_load(chosen)} this rate."
    )


def _work(plan: ShapePlan) -> str:
    """Returns the shares of prompts and answers in the compute, and the room for prompts in steps that decode."""
    chosen, degree = plan.chosen, plan.estimates.degrees[plan.chosen.shape.layout.decode]
    context = degree.context
    uncached = [tokens for _, tokens in context.counted]
    cached = 1 - sum(uncached) / sum(arrival.prompt for arrival, _ in context.counted)
    rows = plan.load.rate * context.outputs * chosen.result.tpot.p50 / chosen.shape.decode
    seconds, room = degree.room(rows)
    longer = sum(tokens > room for tokens in uncached) / len(uncached)
    caches = f"; caches can save up to {cached:.0%} of the prompt tokens" if cached > 0 else ""
    return (
        f"Prompts are {degree.prompt_share:.0%} of the compute, and answers {1 - degree.prompt_share:.0%}{caches}. A "
        f"worker decodes {rows:.1f} sequences on average. Such a step takes {ms(seconds)} and leaves room for {room} "
        f"prompt tokens within {STEP_TARGET} × slo.tpot; {longer:.0%} of the prompts have more to compute. In one pool "
        "they are spread over several steps of running answers; in separate pools they delay none, but the pools "
        "cannot lend each other idle time."
    )


def _others(plan: ShapePlan) -> list[str]:
    """Returns the distance of the second option, and of the best one with the other number of pools."""
    if len(plan.options) < 2:
        return []
    second, other = plan.options[1], plan.best(not plan.chosen.shape.layout.unified)
    texts = [f"Second: {_distance(plan, second)}"]
    if other is not None and other is not second:
        pools = "one pool" if other.shape.layout.unified else "separate pools"
        texts.append(f"Best with {pools}: {_distance(plan, other)}")
    return texts


def _distance(plan: ShapePlan, option: Option) -> str:
    chosen, shape = plan.chosen, option.shape
    name = f"{shape.workers}, tensor {_degrees(shape.layout)}, chunk {shape.chunk}, slo.tpot {ms(shape.tpot)},"
    if not option.meets:
        share = f"{option.result.attainment:.1%} with {_count(shape.gpus, 'GPU')}"
        return f"{name} reaches only {share}: {_misses(option.result)}."
    behind = 1 - plan.goodput(option) / plan.goodput(chosen)
    if more := shape.gpus - chosen.shape.gpus:
        return f"{name} needs {_count(more, 'GPU')} more: {behind:.0%} less goodput per GPU."
    if option.load >= chosen.load * (1 - EQUAL):
        return f"{name} is as good: it serves up to {_load(option)} this rate, and the search is not more exact."
    missed = f"; at {_load(chosen)} this rate, {_misses(option.stressed)}" if option.stressed else ""
    less = 1 - option.load / chosen.load
    return f"{name} has as many GPUs and serves up to {_load(option)} this rate, {less:.0%} less{missed}."


def _no_shape(plan: ShapePlan) -> str:
    """Returns the arithmetic of a workload that no shape serves, and the closest shape."""
    closest = plan.chosen
    degree = plan.estimates.degrees[closest.shape.layout.decode]
    need, context = degree.prefill + degree.decode, degree.context
    sums = (
        f"its prompts keep {degree.prefill:.2f} workers busy and its answers {degree.decode:.2f}, {need:.2f} together "
        f"({context.rate:.3g} requests/s ÷ {context.prefill_rate:.3g} and ÷ {context.decode_rate:.3g} "
        f"of one worker with tensor {closest.shape.layout.decode}), before any queue or burst"
    )
    return (
        f"No shape of up to {_count(plan.gpus, 'GPU')} serves {ATTAINMENT:.0%} of this workload within the objectives: "
        f"{sums}. The closest is {closest.shape.workers}, tensor {_degrees(closest.shape.layout)}, with "
        f"{closest.result.attainment:.1%}: {_misses(closest.result)}."
    )


def _misses(result: Result) -> str:
    """Returns the shares of requests that miss each objective, or are not served."""
    shares = {
        "miss slo.ttft": result.missed_ttft,
        "miss slo.tpot": result.missed_tpot,
        "are not served": result.refused + result.unfinished,
    }
    given = [f"{count / result.offered:.1%} of the requests {name}" for name, count in shares.items() if count]
    return ", ".join(given) or "none of the requests misses"


def _degrees(layout: PoolLayout) -> str:
    return str(layout.decode) if layout.prefill in (0, layout.decode) else f"{layout.prefill} + {layout.decode}"


def _load(option: Option) -> str:
    return f"{'more than ' if option.load >= MOST_LOAD else ''}{option.load:.2f} ×"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def as_json(plan: ShapePlan) -> dict[str, Any]:
    """Returns all options. Deterministic."""
    return {
        "workload": plan.load.whole.name,
        "rate": plan.load.rate,
        "gpus": plan.gpus,
        "meets": bool(plan.options) and plan.chosen.meets,
        "refused": dict(plan.refused),
        "options": [_as_json(plan, option) for option in plan.options],
    }


def _as_json(plan: ShapePlan, option: Option) -> dict[str, Any]:
    result = {name: value for name, value in dataclasses.asdict(option.result).items() if name != "timeline"}
    shape = {**dataclasses.asdict(option.shape), "gpus": option.shape.gpus}
    return {"shape": shape, "goodput_per_gpu": plan.goodput(option), "serves": option.load, "result": result}
