"""Autoscalers to compare with, one in each file: how they decide, and where that was read."""

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

RIVALS = {
    rival.name: rival
    for rival in (
        fixed.RIVAL,
        fixed.UNIFIED,
        request_rate.RIVAL,
        schedule.RIVAL,
        concurrency.RIVAL,
        aibrix.RIVAL,
        llm_d.RIVAL,
        dynamo.RIVAL,
        clairvoyant.RIVAL,
    )
}
BOUND = clairvoyant.RIVAL.name  # no autoscaler, and so not what others are compared with
