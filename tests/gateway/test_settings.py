"""Flags become settings, or the start stops with a text that names the flag."""

import itertools
import re
from argparse import ArgumentParser

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


def test_workers_can_be_named():
    read = _read(*NEEDED, "--worker", "a=127.0.0.1:1", "--worker", "b=[::1]:2")
    assert read.workers == (("a", "127.0.0.1:1"), ("b", "[::1]:2"))


def test_quotas_are_tokens_per_minute_by_tenant():
    read = _read(*NEEDED, "--tenant-quota", "a=b=600", "--tenant-quota=*=60")
    assert read.tenant_quotas == (("a=b", 600), ("*", 60))


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


def test_a_port_and_an_inherited_socket_exclude_each_other():
    assert _read(*NEEDED, "--listen-fd", "7").listen_fd == 7
    with pytest.raises(SettingsError, match="--port and --listen-fd cannot be given together"):
        _read(*NEEDED, "--port", "80", "--listen-fd", "7")


def test_workers_come_from_one_place():
    places = {
        "--worker": ("--worker", "a=h:1"),
        "--workers-file": ("--workers-file", "w.json"),
        "--workers-service": ("--workers-service", "s-workers", "--namespace", "n"),
    }
    for one, other in itertools.combinations(places, 2):
        with pytest.raises(SettingsError, match=rf"(?=.*{one}\b)(?=.*{other}\b).* cannot be given together"):
            _read(*NEEDED, *places[one], *places[other])


def test_a_service_of_workers_has_a_namespace():
    read = _read(*NEEDED, "--workers-service", "s-workers", "--namespace", "n", environ={"KUBECONFIG": "/config"})
    assert (read.workers_service, read.namespace, read.kubeconfig) == ("s-workers", "n", "/config")
    for alone in (("--workers-service", "s-workers"), ("--namespace", "n")):
        with pytest.raises(SettingsError, match="must be given together"):
            _read(*NEEDED, *alone)


def test_a_certificate_has_a_key():
    read = _read(*NEEDED, "--tls-certificate-file", "tls.crt", "--tls-key-file", "tls.key")
    assert (str(read.tls_certificate_file), str(read.tls_key_file)) == ("tls.crt", "tls.key")
    said = "--tls-certificate-file and --tls-key-file must be given together"
    for alone in (("--tls-certificate-file", "tls.crt"), ("--tls-key-file", "tls.key")):
        with pytest.raises(SettingsError, match=said):
            _read(*NEEDED, *alone)


def test_internal_tls_has_a_name_and_strict_has_files():
    read = _read(*NEEDED, "--internal-tls-folder", "tls", "--internal-tls-name", "s-workers.n.svc")
    assert (read.control_tls_port, read.plain_control) == (8084, True)
    for alone in (("--internal-tls-folder", "tls"), ("--internal-tls-name", "s")):
        with pytest.raises(SettingsError, match="must be given together"):
            _read(*NEEDED, *alone)
    with pytest.raises(SettingsError, match="Strict needs --internal-tls-folder"):
        _read(*NEEDED, "--internal-tls-mode", "Strict")
    given = ("--internal-tls-folder", "tls", "--internal-tls-name", "s", "--internal-tls-mode", "Strict")
    assert not _read(*NEEDED, *given).plain_control
    with pytest.raises(SettingsError, match="would be open to everyone"):
        _read(*NEEDED, "--host", "0.0.0.0", *given)


def test_a_control_port_that_everyone_reaches_needs_a_token():
    assert _read(*NEEDED, "--control-port", "0").control_port == 0
    assert _read(*NEEDED, "--host", "0.0.0.0").control_port is None
    told = _read(*NEEDED, "--host", "0.0.0.0", "--control-port", "0", environ={names.ENV_TOKEN: "secret"})
    assert told.control_port == 0
    with pytest.raises(SettingsError, match=r"--host: 0\.0\.0\.0 is not a loopback address"):
        _read(*NEEDED, "--host", "0.0.0.0", "--control-port", "0")
