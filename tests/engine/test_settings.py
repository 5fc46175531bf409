"""Flags of a worker that are more than a number."""

from argparse import ArgumentParser

import pytest

from legato_engine import settings
from legato_protocol.flags import SettingsError

LEAST = ["--role", "decode", "--name", "d0", "--model", "m"]


def read(*flags: str, **environ: str) -> settings.WorkerSettings:
    parser = ArgumentParser()
    settings.add_flags(parser)
    return settings.read(parser.parse_args([*LEAST, *flags]), environ)


def test_transfer_ports_are_a_range_or_any() -> None:
    assert read().transfer_ports is None
    assert read("--transfer-ports", "7100-7163").transfer_ports == (7100, 7163)


@pytest.mark.parametrize("wrong", ["7100", "7163-7100", "7100-7100", "0-5", "7100-70000", "a-b"])
def test_a_wrong_range_is_named(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"--transfer-ports is .*such as 7100-7163"):
        read("--transfer-ports", wrong)


def test_a_step_limit_is_a_duration() -> None:
    assert read().step_limit == 120
    assert read("--step-limit", "90s").step_limit == 90
    assert (read().start_limit, read("--start-limit", "1h").start_limit) == (600, 3600)


def test_without_a_token_hand_offs_stay_on_the_loopback() -> None:
    with pytest.raises(SettingsError, match=r"--transfer-host is '192\.0\.2\.2'.*LEGATO_TOKEN"):
        read("--transfer-host", "192.0.2.2")
    assert read("--transfer-host", "192.0.2.2", LEGATO_TOKEN="secret").transfer_host == "192.0.2.2"
    assert read("--transfer-host", "192.0.2.2", "--transport", "None").transfer_host == "192.0.2.2"
    assert read("--transfer-host", "127.0.0.2").transfer_host == "127.0.0.2"
