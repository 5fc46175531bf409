"""What the settings of a gateway make of its parts."""

from dataclasses import replace

from legato_gateway import assembly
from legato_gateway.routing.rebalancing import RebalancingPolicy
from legato_gateway.routing.scorers import Objectives
from legato_gateway.settings import GatewaySettings

SETTINGS = GatewaySettings("model", "name", 4096, slo_ttft=2.0, slo_tpot=0.2)


def test_admission_and_routing_agree_when_decode_workers_help_with_prompts():
    assert assembly.routing(SETTINGS).objectives == Objectives(ttft=2.0, tpot=0.2)
    assert assembly.admission(SETTINGS, None)._limits.objectives == Objectives(ttft=2.0, tpot=0.2)


def test_and_when_prompts_wait_for_prefill_workers():
    waiting = replace(SETTINGS, when_prefill_busy="Wait")
    assert assembly.routing(waiting).objectives is None
    assert assembly.admission(waiting, None)._limits.objectives is None


def test_hot_decode_workers_hand_on_by_the_objective_also_where_prompts_wait():
    for settings in (SETTINGS, replace(SETTINGS, when_prefill_busy="Wait")):
        assert assembly.relaying(settings).rebalancing == RebalancingPolicy(0.2)
