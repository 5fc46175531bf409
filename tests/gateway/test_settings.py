"""Flags become settings, or the start stops with a text that names the flag."""

import itertools
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
    assert read.served_name == "smollm2-135m-instruct"
    assert read.token == "secret"
    assert "secret" not in repr(read)


def test_workers_can_be_named():
    read = _read(*NEEDED, "--worker", "a=127.0.0.1:1", "--worker", "b=[::1]:2")
    assert read.workers == (("a", "127.0.0.1:1"), ("b", "[::1]:2"))


def test_quotas_are_tokens_per_minute_by_tenant():
    read = _read(*NEEDED, "--tenant-quota", "a=b=600", "--tenant-quota=*=60")
    assert read.tenant_quotas == (("a=b", 600), ("*", 60))


@pytest.mark.parametrize(("text", "value"), [("600", 600), ("10m", 600), ("1m30s", 90), ("500ms", 0.5), ("1.5h", 5400)])
def test_durations(text, value):
    assert settings.seconds(text) == value


@pytest.mark.parametrize(
    "flags",
    [
        ("--port", "70000"),
        ("--port", "-1"),
        ("--port", "x"),
        ("--listen-fd", "1"),
        ("--health-port", "-1"),
        ("--default-deadline", "0"),
        ("--default-deadline", "ten"),
        ("--default-deadline", "5 m"),
        ("--default-deadline", "nan"),
        ("--slow-client", "pause"),
        ("--when-prefill-unavailable", "local"),
        ("--transfer-on-failure", "Never"),
        ("--buffer-tokens", "0"),
        ("--max-length", "1"),
        ("--served-name", " "),
        ("--worker", "127.0.0.1:80"),
        ("--worker", "a=host:0"),
        ("--tenant-quota", "600"),
        ("--tenant-quota", "a=0"),
        ("--tenant-quota", "a=many"),
    ],
)
def test_a_bad_value_names_its_flag(flags):
    with pytest.raises(SettingsError, match=f"^{flags[0]} '{flags[1]}' is not allowed: .* wanted$|{flags[0]}"):
        _read(*NEEDED, *flags)


@pytest.mark.parametrize("missing", ["--model", "--max-length"])
def test_what_is_missing_is_named(missing):
    at = NEEDED.index(missing)
    with pytest.raises(SettingsError, match=f"{missing} is missing"):
        _read(*NEEDED[:at], *NEEDED[at + 2 :])


def test_a_port_and_an_inherited_socket_exclude_each_other():
    assert _read(*NEEDED, "--listen-fd", "7").listen_fd == 7
    with pytest.raises(SettingsError, match="exclude each other"):
        _read(*NEEDED, "--port", "80", "--listen-fd", "7")


def test_workers_come_from_one_place():
    places = {
        "--worker": ("--worker", "a=h:1"),
        "--workers-file": ("--workers-file", "w.json"),
        "--workers-service": ("--workers-service", "s-workers", "--namespace", "n"),
    }
    for one, other in itertools.combinations(places, 2):
        with pytest.raises(SettingsError, match=f"{one} and {other} exclude each other"):
            _read(*NEEDED, *places[one], *places[other])


def test_a_service_of_workers_has_a_namespace():
    read = _read(*NEEDED, "--workers-service", "s-workers", "--namespace", "n", environ={"KUBECONFIG": "/config"})
    assert (read.workers_service, read.namespace, read.kubeconfig) == ("s-workers", "n", "/config")
    for alone in (("--workers-service", "s-workers"), ("--namespace", "n")):
        with pytest.raises(SettingsError, match="go together"):
            _read(*NEEDED, *alone)
    with pytest.raises(SettingsError, match="--namespace 'a/b' is not allowed"):
        _read(*NEEDED, "--workers-service", "s-workers", "--namespace", "a/b")
