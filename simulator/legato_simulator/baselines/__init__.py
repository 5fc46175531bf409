"""Baseline autoscalers, one per file, each with the source of its algorithm."""

from legato_simulator.baselines import (
    aibrix,
    clairvoyant,
    concurrency,
    dynamo,
    fixed,
    llm_d,
    request_rate,
    schedule,
)

BASELINES = {
    baseline.name: baseline
    for baseline in (
        fixed.BASELINE,
        fixed.UNIFIED,
        request_rate.BASELINE,
        schedule.BASELINE,
        concurrency.BASELINE,
        aibrix.BASELINE,
        llm_d.BASELINE,
        dynamo.BASELINE,
        clairvoyant.BASELINE,
    )
}
BOUND = clairvoyant.BASELINE.name  # not an autoscaler, so it is never the best baseline
