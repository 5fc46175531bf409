"""Autoscalers to compare with, one in each file: how they decide, and where that was read."""

from legato_cli.simulation.rivals import (
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
    module.RIVAL.name: module.RIVAL
    for module in (fixed, request_rate, schedule, concurrency, aibrix, llm_d, dynamo, clairvoyant)
}
BOUND = clairvoyant.RIVAL.name  # no autoscaler, and so not what others are compared with
