"""`legato record`, as it is called, from a running service to a replay."""

import asyncio
import json

import pytest
import recordings
from known_signals import arriving, decoder, prefiller
from recordings import recorded_round

from legato_cli import admin, main
from legato_cli.recording import signal_round
from legato_operator.autoscaler.signals import Signals

KNOWN = Signals((prefiller(), decoder()), arriving(60, 2000))


@pytest.fixture(autouse=True)
def sockets(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def _record(answer, *flags):
    async def run():
        async with admin.listening("chat", answer):
            return await asyncio.to_thread(main.main, ["record", *map(str, flags)])

    return asyncio.run(run())


async def _answer(order):
    assert order == {"do": "signals"}
    return {"round": signal_round.encode(recorded_round(0, KNOWN)).decode()}


def test_a_running_service_is_recorded_and_the_replay_is_named(tmp_path, capsys):
    file = tmp_path / "s.jsonl"
    assert _record(_answer, file, "--for", "1s") == 0
    assert json.loads(file.read_text())["service"] == "chat"
    told = capsys.readouterr()
    assert f"writing to {file}, at most 1Gi in 4 files" in told.err
    assert f"1 rounds; replay them with: legato simulate -f MANIFEST --signals {file}" in told.out


def test_a_file_that_exists_is_kept(tmp_path, capsys):
    file = recordings.write(tmp_path / "s.jsonl", [recorded_round(0, KNOWN)])
    before = file.read_bytes()
    assert _record(_answer, file, "--for", "1s") == 2
    assert "exists (choose another name)" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_where_nothing_runs_no_file_is_left(tmp_path, capsys):
    file = tmp_path / "s.jsonl"
    assert main.main(["record", str(file)]) == 1
    assert "no service is running" in capsys.readouterr().err
    assert not file.exists()
    assert main.main(["record", str(tmp_path / "none" / "s.jsonl")]) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_what_the_service_refuses_is_told(tmp_path, capsys):
    async def refuse(order):
        return {"error": "unknown command (is the running `legato up` of the same version?)"}

    assert _record(refuse, tmp_path / "s.jsonl") == 1
    assert "is the running `legato up` of the same version?" in capsys.readouterr().err


def test_a_namespace_needs_a_service(tmp_path, capsys):
    assert main.main(["record", str(tmp_path / "s.jsonl"), "--namespace", "prod"]) == 2
    assert "--service is required" in capsys.readouterr().err
    assert not (tmp_path / "s.jsonl").exists()
