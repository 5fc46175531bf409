"""Flags become settings, or the start stops with a text that names the flag."""

import itertools
import re
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

import pytest

from legato_gateway import assembly, settings
from legato_gateway.generation_config import NEUTRAL, GenerationDefaults
from legato_gateway.http import server
from legato_gateway.routing.rebalancing import RebalancingPolicy
from legato_gateway.routing.scorers import Objectives
from legato_gateway.settings import GatewaySettings
from legato_protocol import names
from legato_protocol.settings.flags import SettingsError


def _read(*flags, environ=None):
    parser = ArgumentParser()
    settings.add_flags(parser)
    return settings.read(parser.parse_args(flags), environ or {})


NEEDED = ("--model", "builtin:smollm2-135m-instruct")


BAD = """
--listen-fd=1 --default-deadline=600 --default-deadline=200h --slow-client=pause --slo-ttft=fast --buffer-tokens=0
--when-prefill-unavailable=local --when-prefill-busy=Fail --transfer-on-failure=Never --max-length=1 --served-name=
--on-worker-failure=Recompute
--worker=127.0.0.1:80 --worker==host:80 --worker=a=host:0 --worker=a=fd00::1:80 --namespace=a/b
--tenant-quota=600 --tenant-quota==600 --tenant-quota=a=0 --tenant-quota=a=many
--tenant-max-output-tokens=9 --tenant-max-output-tokens=a=0
"""


def test_a_bad_value_names_its_flag(capsys):
    for flag, _, value in (each.partition("=") for each in BAD.split()):
        with pytest.raises(SystemExit) as stopped:
            _read(*NEEDED, flag, value)
        assert stopped.value.code == 2
        shown = re.escape(value or "''")
        assert re.search(rf"argument {flag}: not a valid \w+: {shown} \(.+\)", capsys.readouterr().err), value


CERTIFICATE = "--tls-certificate-file=tls.crt --tls-key-file=tls.key"
IN_CLUSTER = "--workers-service=s-workers --namespace=n"
INTERNAL = "--internal-tls-folder=tls --internal-tls-name=s-workers.n.svc"


READ = {
    "--worker=a=127.0.0.1:1 --worker=b=[::1]:2": {"workers": (("a", "127.0.0.1:1"), ("b", "[::1]:2"))},
    "--tenant-quota=a=b=600 --tenant-quota=*=60": {"tenant_quotas": (("a=b", 600), ("*", 60))},
    "--tenant-max-output-tokens=a=9": {"tenant_max_output": (("a", 9),)},
    "--listen-fd=7": {"listen_fd": 7},
    IN_CLUSTER: {"workers_service": "s-workers", "namespace": "n", "kubeconfig": "/config"},
    CERTIFICATE: {"tls_certificate_file": Path("tls.crt"), "tls_key_file": Path("tls.key")},
    INTERNAL: {"control_tls_port": 8084, "plain_control": True},
    f"{INTERNAL} --internal-tls-mode=Strict": {"plain_control": False},
    "--control-port=0": {"control_port": 0},
    "--host=0.0.0.0": {"control_port": None},
    "--host=0.0.0.0 --control-port=0": {"control_port": 0},
}


@pytest.mark.parametrize("flags", READ)
def test_flags_become_settings(flags):
    read = _read(*NEEDED, *flags.split(), environ={"KUBECONFIG": "/config", names.ENV_TOKEN: "secret"})
    assert {name: getattr(read, name) for name in READ[flags]} == READ[flags]


PLACES = ("--worker=a=h:1", "--workers-file=w.json", IN_CLUSTER)
TOGETHER = "{} and {} must be given together"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--port=80 --listen-fd=7", "--port and --listen-fd cannot be given together"),
        *(
            (f"{one} {other}", rf"(?=.*{one.split('=')[0]}\b)(?=.*{other.split('=')[0]}\b).* cannot be given together")
            for one, other in itertools.combinations(PLACES, 2)
        ),
        ("--workers-service=s-workers", "must be given together"),
        ("--namespace=n", "must be given together"),
        *((flag, TOGETHER.format("--tls-certificate-file", "--tls-key-file")) for flag in CERTIFICATE.split()),
        *((flag, "must be given together") for flag in INTERNAL.split()),
        ("--internal-tls-mode=Strict", "Strict needs --internal-tls-folder"),
        (f"--host=0.0.0.0 --internal-tls-mode=Strict {INTERNAL}", "would be open to everyone"),
        ("--host=0.0.0.0 --control-port=0", r"--host: 0\.0\.0\.0 is not a loopback address"),
    ],
)
def test_flags_that_do_not_go_together_stop_the_start(flags, said):
    with pytest.raises(SettingsError, match=said):
        _read(*NEEDED, *flags.split())


SETTINGS = GatewaySettings("model", "name", 4096, slo_ttft=2.0, slo_tpot=0.2)


def test_admission_and_routing_agree_about_prompts_that_wait_for_prefill_workers():
    waiting = replace(SETTINGS, when_prefill_busy="Wait")
    for each, objectives in ((SETTINGS, Objectives(ttft=2.0, tpot=0.2)), (waiting, None)):
        assert assembly.routing(each).objectives == objectives
        assert assembly.admission(each, None)._limits.objectives == objectives
        assert assembly.relaying(each).rebalancing == RebalancingPolicy(0.2), "hot workers hand on in any case"
        assert assembly.admission(each, None)._limits.refuse_beyond is None
    refusing = replace(SETTINGS, when_late="Refuse")
    assert assembly.routing(refusing).objectives == Objectives(ttft=1.0, tpot=0.2), "decode workers help sooner"
    assert assembly.admission(refusing, None)._limits.refuse_beyond == Objectives(ttft=2.0, tpot=0.2)


FOUND = GenerationDefaults(0.3, top_k=40)
DEFAULTS = {
    "Auto": (FOUND, "sampling defaults of the model: temperature 0.3, top_k 40"),
    "None": (NEUTRAL, "sampling defaults are neutral"),
}


@pytest.mark.parametrize("flag", DEFAULTS)
def test_defaults_of_the_models_makers_count_unless_they_are_off(tmp_path, caplog, flag):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 40}')
    caplog.set_level("INFO")
    found, said = DEFAULTS[flag]
    assert assembly.defaults(replace(SETTINGS, generation_config=flag), tmp_path) == found
    assert said in caplog.text


NO_FILES = {"tls_certificate_file": Path("none.crt"), "tls_key_file": Path("none.key")}
NO_CLUSTER = {"workers_service": "s-workers", "namespace": "demo"}
UNUSABLE = [
    (server.listeners, {"listen_fd": 77}, "--listen-fd 77"),
    (assembly.certificate, NO_FILES, "--tls-certificate-file none.crt: No such file"),
    (assembly.discovery, NO_CLUSTER, "--workers-service s-workers: the cluster's address and token cannot be read"),
]


@pytest.mark.parametrize(("part", "wrong", "said"), UNUSABLE)
def test_files_and_clusters_that_cannot_be_used_are_named_with_their_flag(monkeypatch, part, wrong, said):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match=said):
        part(replace(SETTINGS, **wrong))
