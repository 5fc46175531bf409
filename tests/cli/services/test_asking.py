"""Commands that ask a service say which one is missing."""

import pytest

COMMANDS = [
    "chat hello",
    "describe",
    "explain scaling",
    "logs",
    "record FILE",
    "scale decode 2",
    "state",
    "status",
    "ui",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_service_it_says_so_and_writes_nothing(command, legato, tmp_path):
    name, *words = command.replace("FILE", str(tmp_path / "s.jsonl")).split()
    code, out, err = legato(name, *words)
    said = f"legato {name}: no service is running (start one with `legato up`)"
    assert (code, out, err.splitlines()[-1]) == (1, "", said)
    code, out, err = legato(name, *words, "--namespace", "prod")
    assert (code, out) == (2 if name == "record" else 1, "")
    assert "--service is required" in err
    assert not list(tmp_path.iterdir())
