"""What the settings of a gateway make of its parts."""

from dataclasses import replace
from pathlib import Path

import pytest

from legato_gateway import assembly
from legato_gateway.generation_config import NEUTRAL, GenerationDefaults
from legato_gateway.http import server
from legato_gateway.routing.rebalancing import RebalancingPolicy
from legato_gateway.routing.scorers import Objectives
from legato_gateway.settings import GatewaySettings
from legato_protocol.flags import SettingsError

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


@pytest.mark.parametrize(
    ("flag", "found", "said"),
    [
        ("Auto", GenerationDefaults(0.3, top_k=40), "sampling defaults of the model: temperature 0.3, top_k 40"),
        ("None", NEUTRAL, "sampling defaults are neutral"),
    ],
)
def test_defaults_of_the_models_makers_count_unless_they_are_off(tmp_path, caplog, flag, found, said):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 40}')
    caplog.set_level("INFO")
    assert assembly.defaults(replace(SETTINGS, generation_config=flag), tmp_path) == found
    assert said in caplog.text


@pytest.mark.parametrize(
    ("part", "wrong", "said"),
    [
        (server.listeners, {"listen_fd": 77}, "--listen-fd 77"),
        (
            assembly.certificate,
            {"tls_certificate_file": Path("none.crt"), "tls_key_file": Path("none.key")},
            "--tls-certificate-file none.crt: No such file",
        ),
        (
            assembly.discovery,
            {"workers_service": "s-workers", "namespace": "demo"},
            "--workers-service s-workers: the cluster's address and token cannot be read",
        ),
    ],
)
def test_files_and_clusters_that_cannot_be_used_are_named_with_their_flag(monkeypatch, part, wrong, said):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match=said):
        part(replace(SETTINGS, **wrong))
