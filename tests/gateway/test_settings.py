"""Flags become settings, or the start stops with a text that names the flag."""

import itertools
import re
from argparse import ArgumentParser
from pathlib import Path

import pytest

from legato_gateway import settings
from legato_protocol import names
from legato_protocol.flags import SettingsError


def _read(*flags, environ=None):
    parser = ArgumentParser()
    settings.add_flags(parser)
    return settings.read(parser.parse_args(flags), environ or {})


NEEDED = ("--model", "builtin:smollm2-135m-instruct", "--max-length", "4096")


def test_defaults_are_those_of_the_design():
    read = _read(*NEEDED, environ={names.ENV_TOKEN: "secret"})
    assert (read.port, read.default_deadline, read.local_prefill_below_tokens) == (8080, 600.0, 64)
    assert (read.when_prefill_unavailable, read.transfer_on_failure, read.slow_client) == ("Local", "Retry", "Pause")
    assert (read.when_prefill_busy, read.slo_ttft, read.slo_tpot) == ("Local", 1.0, 0.1)
    assert read.served_name == "smollm2-135m-instruct"
    assert read.token == "secret"
    assert "secret" not in repr(read)


@pytest.mark.parametrize(
    "flags",
    [
        ("--listen-fd", "1"),
        ("--default-deadline", "600"),
        ("--default-deadline", "200h"),
        ("--slow-client", "pause"),
        ("--when-prefill-unavailable", "local"),
        ("--when-prefill-busy", "Fail"),
        ("--slo-ttft", "fast"),
        ("--transfer-on-failure", "Never"),
        ("--buffer-tokens", "0"),
        ("--max-length", "1"),
        ("--served-name", ""),
        ("--worker", "127.0.0.1:80"),
        ("--worker", "=host:80"),
        ("--worker", "a=host:0"),
        ("--worker", "a=fd00::1:80"),
        ("--tenant-quota", "600"),
        ("--tenant-quota", "=600"),
        ("--tenant-quota", "a=0"),
        ("--tenant-quota", "a=many"),
        ("--namespace", "a/b"),
    ],
)
def test_a_bad_value_names_its_flag(flags, capsys):
    with pytest.raises(SystemExit) as stopped:
        _read(*NEEDED, *flags)
    assert stopped.value.code == 2
    shown = flags[1] or "''"
    assert re.search(rf"argument {flags[0]}: not a valid \w+: {re.escape(shown)} \(.+\)", capsys.readouterr().err)


@pytest.mark.parametrize("missing", ["--model", "--max-length"])
def test_what_is_missing_is_named(missing, capsys):
    at = NEEDED.index(missing)
    with pytest.raises(SystemExit):
        _read(*NEEDED[:at], *NEEDED[at + 2 :])
    assert f"required: {missing}" in capsys.readouterr().err


CERTIFICATE = "--tls-certificate-file=tls.crt --tls-key-file=tls.key"
INTERNAL = "--internal-tls-folder=tls --internal-tls-name=s-workers.n.svc"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--worker=a=127.0.0.1:1 --worker=b=[::1]:2", {"workers": (("a", "127.0.0.1:1"), ("b", "[::1]:2"))}),
        ("--tenant-quota=a=b=600 --tenant-quota=*=60", {"tenant_quotas": (("a=b", 600), ("*", 60))}),
        ("--listen-fd=7", {"listen_fd": 7}),
        (
            "--workers-service=s-workers --namespace=n",
            {"workers_service": "s-workers", "namespace": "n", "kubeconfig": "/config"},
        ),
        (CERTIFICATE, {"tls_certificate_file": Path("tls.crt"), "tls_key_file": Path("tls.key")}),
        (INTERNAL, {"control_tls_port": 8084, "plain_control": True}),
        (f"{INTERNAL} --internal-tls-mode=Strict", {"plain_control": False}),
        ("--control-port=0", {"control_port": 0}),
        ("--host=0.0.0.0", {"control_port": None}),
        ("--host=0.0.0.0 --control-port=0", {"control_port": 0}),
    ],
)
def test_flags_become_settings(flags, expected):
    read = _read(*NEEDED, *flags.split(), environ={"KUBECONFIG": "/config", names.ENV_TOKEN: "secret"})
    assert {name: getattr(read, name) for name in expected} == expected


PLACES = ("--worker=a=h:1", "--workers-file=w.json", "--workers-service=s-workers --namespace=n")
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
