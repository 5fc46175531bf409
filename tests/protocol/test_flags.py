"""Settings become flags, and bad values are named."""

from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from legato_protocol import names
from legato_protocol.settings import flags
from legato_protocol.settings.flags import Flag, SettingsError


@dataclass(frozen=True)
class Example:
    name: str
    port: int = 80
    deadline: float = 90.0
    memory: int = 512 << 20
    workers: tuple[str, ...] = ()
    folder: str | None = None
    token: str = ""


FLAGS = (
    Flag("--name", flags.text("NAME"), "its name"),
    Flag("--port", flags.PORT, "its port"),
    Flag("--deadline", flags.DURATION, "its deadline"),
    Flag("--memory", flags.SIZE, "its memory"),
    Flag("--worker", flags.HOST, "a worker", "workers", repeated=True),
    Flag("--folder", flags.FOLDER, "its folder, 100 % its own"),
)


def parser():
    made = ArgumentParser()
    flags.add(made, FLAGS, Example)
    return made


def read(*arguments):
    return Example(**flags.given(parser().parse_args(arguments), Example))


def test_what_is_not_given_has_the_default_of_its_field():
    assert read("--name", "a") == Example("a")


def test_values_are_read_as_their_kind():
    given = read("--name=a", "--port=81", "--deadline=1m", "--memory=1Gi", "--worker=b", "--worker=c", "--worker=b")
    assert given == Example("a", 81, 60.0, 1 << 30, ("b", "c"))


def test_a_field_without_a_default_is_required(capsys):
    with pytest.raises(SystemExit):
        read()
    assert "required: --name" in capsys.readouterr().err


def test_help_says_kind_and_default_as_they_are_written():
    shown = " ".join(parser().format_help().split())
    assert "--name NAME its name (required)" in shown
    assert "--port PORT its port (default: 80)" in shown
    assert "--deadline DURATION its deadline (default: 90s)" in shown
    assert "--memory SIZE its memory (default: 512Mi)" in shown
    assert "--worker HOST a worker (may be repeated)" in shown
    assert "--folder FOLDER its folder, 100 % its own" in shown
    assert not shown.endswith(")")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("--port=99999", "argument --port: not a valid port: 99999 (1 to 65535)"),
        ("--deadline=90", "argument --deadline: not a valid duration: 90 (write 90s, 1m30s or 500ms; 1ms to 168h)"),
        ("--worker=a b", "argument --worker: not a valid host: 'a b' (a host name or an IP address)"),
    ],
)
def test_a_bad_value_ends_with_2_and_says_flag_value_and_what_is_allowed(value, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        read("--name=a", value)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_parent_is_a_process_id():
    assert flags.parent({}) == 0
    assert flags.parent({names.ENV_PARENT: "42"}) == 42
    with pytest.raises(SettingsError, match=rf"^{names.ENV_PARENT}: not a valid process id: init \(0 to \d+\)$"):
        flags.parent({names.ENV_PARENT: "init"})


@dataclass(frozen=True)
class Annotations:
    most_hosts: Annotated[int, flags.whole("COUNT", 1, 9), "most hosts"] = 3
    hosts: Annotated[tuple[str, ...], flags.HOST, "a host", "--host"] = ()
    policy: Annotated[Literal["Wait", "Fail"], "POLICY", "what to do: "] = "Wait"
    token: str = ""


def test_annotations_of_fields_are_flags():
    most, host, policy = flags.from_annotations(Annotations)
    assert (most.name, most.dest, most.kind.metavar, most.help) == ("--most-hosts", "most_hosts", "COUNT", "most hosts")
    assert host == Flag("--host", flags.HOST, "a host", "hosts", repeated=True)
    assert (policy.kind.metavar, policy.kind.words, policy.help) == (
        "POLICY",
        ("Wait", "Fail"),
        "what to do: Wait, Fail",
    )
