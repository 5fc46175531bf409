"""What `--watch` and `-o json` print: each state once, and nothing of what has not changed."""

import io
import json

import pytest

from legato_cli import main
from legato_cli.services import asking, showing

ONE, TWO = {"name": "chat", "ready": 1}, {"name": "chat", "ready": 2}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _shown(answers, as_json=False, out=None):
    out, slept = out or io.StringIO(), []
    showing.show(iter(answers), lambda told: iter([f"{told['ready']} ready"]), as_json, out, slept.append)
    return out.getvalue(), len(slept)


def test_only_changes_are_printed_and_there_is_a_pause_before_each_look():
    assert _shown([ONE, ONE, TWO, TWO, ONE]) == ("1 ready\n\n2 ready\n\n1 ready\n", 4)


def test_a_terminal_is_written_anew():
    assert _shown([ONE, TWO], out=Terminal())[0] == "1 ready\n\x1b[2J\x1b[H2 ready\n"


def test_programs_get_one_object_after_another():
    decoder, text, found = json.JSONDecoder(), _shown([ONE, ONE, TWO], as_json=True)[0], []
    while text.strip():
        item, end = decoder.raw_decode(text.lstrip())
        found.append(item)
        text = text.lstrip()[end:]
    assert found == [ONE, TWO]


@pytest.mark.parametrize("command", ["status", "describe"])
def test_a_watch_ends_with_1_and_the_reason_when_the_service_is_gone(command, monkeypatch, capsys):
    told = {"name": "chat", "namespace": "default", "generation": 1, "conditions": [], "pods": [], "scaling": None}
    answers = iter([told | {"events": []}])

    def ask(_service, order):
        try:
            return {order["do"]: next(answers)}
        except StopIteration:
            raise asking.NoAnswer("no service is running") from None

    monkeypatch.setattr(asking, "_ask_local", ask)
    monkeypatch.setattr(showing, "INTERVAL", 0)
    assert main.main([command, "--watch", "-o", "json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == "chat"
    assert err == f"legato {command}: no service is running\n"
