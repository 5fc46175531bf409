"""`legato record`, as it is called, from a running service to a replay."""

import json

import pytest
import recordings
from known_signals import arriving, decoder, prefiller
from local_services import answered
from recordings import recorded_round

from legato_cli.recording import signal_round
from legato_operator.autoscaler.signals import Signals

pytestmark = pytest.mark.anyio
KNOWN = Signals((prefiller(), decoder()), arriving(60, 2000))


async def _answer(order):
    assert order == {"do": "signals"}
    return {"round": signal_round.encode(recorded_round(0, KNOWN)).decode()}


async def test_a_running_service_is_recorded_and_the_replay_is_named(tmp_path, legato):
    file = tmp_path / "s.jsonl"
    code, out, err = await answered(legato, _answer, "record", file, "--for", "1s")
    assert code == 0
    assert json.loads(file.read_text())["service"] == "chat"
    assert f"writing to {file}, at most 1Gi in 4 files" in err
    assert f"1 rounds; replay them with: legato simulate -f MANIFEST --signals {file}" in out


async def test_a_file_that_exists_is_kept(tmp_path, legato):
    file = recordings.write(tmp_path / "s.jsonl", [recorded_round(0, KNOWN)])
    before = file.read_bytes()
    ended = await answered(legato, _answer, "record", file, "--for", "1s")
    assert ended.code == 2
    assert "exists (choose another name)" in ended.err
    assert file.read_bytes() == before


def test_a_file_that_cannot_be_made_is_named(tmp_path, legato):
    ended = legato("record", tmp_path / "none" / "s.jsonl")
    assert ended.code == 2
    assert "No such file or directory" in ended.err


async def test_the_reason_of_a_service_that_refuses_is_given(tmp_path, legato):
    async def refuse(order):
        return {"error": "unknown command (is the running `legato up` of the same version?)"}

    ended = await answered(legato, refuse, "record", tmp_path / "s.jsonl")
    assert ended.code == 1
    assert "is the running `legato up` of the same version?" in ended.err
