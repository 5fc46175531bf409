"""`legato simulate`, as it is called."""

import json
from pathlib import Path

import pytest
import recordings
import yaml
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller
from recordings import recorded_round

from legato_cli.main import main
from legato_cli.simulation import arguments, workloads
from legato_cli.simulation.rivals import RIVALS
from legato_operator.autoscaler.signals import Signals

PROFILE = {
    "source": "round numbers",
    "step": {"perStep": 0.01, "perRow": 0.0001, "perContext": 0, "perToken": 0.0001, "perPair": 0},
    "kvTokens": 64_000,
    "startSeconds": 30,
}
SPEC = {
    "model": {"source": {"builtin": "smollm2-135m-instruct"}},
    "scaling": {"prefill": {"max": 8}, "decode": {"max": 8}},
}


@pytest.fixture
def files(tmp_path):
    """A manifest, a profile and a trace of 200 requests in 100 s."""
    requests = [
        {"timestamp": 500 * i, "input_length": 1500, "output_length": 20, "hash_ids": [i, -i]} for i in range(200)
    ]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, requests)))
    (tmp_path / "gpu.json").write_text(json.dumps(PROFILE))
    _manifest(tmp_path, SPEC)
    return tmp_path


def _manifest(folder, spec):
    manifest = {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": spec,
    }
    (folder / "chat.yaml").write_text(yaml.safe_dump(manifest))


def _simulate(folder, *more, trace="chat.jsonl", profile="gpu.json"):
    given = ["-f", str(folder / "chat.yaml"), "--profile", str(folder / profile)]
    given += ["--trace", str(folder / trace)] if trace else []
    return main(["simulate", *given, *map(str, more)])


def test_a_trace_gives_a_row_of_figures_and_a_timeline(files, capsys):
    assert _simulate(files) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split()[1:10] == ["workload", "|", "scaler", "|", "good", "|", "GPU-hours", "|", "TTFT"]
    assert rows[2].split()[1:4] == ["chat", "|", "legato"]
    assert rows[2].endswith("| 0 of 200   |")
    assert rows[4] == "chat: 200 requests in 2 min"
    assert len(rows) == 8 + 20 - 1


def test_same_seed_same_bytes(files):
    written = []
    for name in ("one.json", "two.json"):
        assert _simulate(files, "--workload", "step", "--seed", 3, "--duration", "60s", "--json", files / name) == 0
        written.append((files / name).read_bytes())
    assert _simulate(files, "--workload", "step", "--seed", 4, "--duration", "60s", "--json", files / "3.json") == 0
    assert written[0] == written[1] != (files / "3.json").read_bytes()


def test_results_and_timelines_are_written_as_json_and_html(files):
    assert _simulate(files, "--json", files / "out.json", "--html", files / "out.html") == 0
    (result,) = json.loads((files / "out.json").read_text())["results"]
    assert (result["scaler"], result["workload"], result["offered"], result["finished"]) == ("legato", "chat", 200, 200)
    assert {"at", "queue_tokens", "kv_usage", "wish", "ready"} <= result["timeline"][0].keys()
    assert (files / "out.html").read_text().startswith("<!DOCTYPE html>")


def test_another_scaler_is_tuned_and_stands_beside(files, capsys):
    assert _simulate(files, "--scaler", "fixed") == 0
    assert "| fixed (prefill" in capsys.readouterr().out


def test_the_start_of_a_worker_can_be_given(files):
    found = []
    for start in ("5s", "90s"):
        flags = ("--workload", "step", "--rate", 8, "--duration", "400s", "--input-tokens", 1500)
        assert _simulate(files, *flags, "--start", start, "--json", files / "out.json") == 0
        found.append(json.loads((files / "out.json").read_text())["results"][0]["attainment"])
    assert found[0] > found[1] + 0.1


def test_a_part_that_is_skipped_counts_in_nothing(files):
    assert _simulate(files, "--skip", "50s", "--json", files / "out.json") == 0
    (result,) = json.loads((files / "out.json").read_text())["results"]
    assert result["offered"] == result["finished"] == 100
    assert result["gpu_hours"] == pytest.approx(2 * 49.5 / 3600)


def test_requests_that_are_too_long_are_told(files, capsys):
    _manifest(files, {**SPEC, "model": {**SPEC["model"], "maxLength": 1024}})
    assert _simulate(files) == 0
    told = capsys.readouterr().out
    assert "200 are longer than model.maxLength, 1024 tokens, and are refused" in told
    assert "200 of 200" in told


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--skip", "10m"), "no request of chat counts: it ends within --skip"),
        (("--json", "/no/such/folder/out.json"), "cannot write /no/such/folder/out.json"),
        (("--html", "/no/such/folder/out.html"), "cannot write /no/such/folder/out.html"),
        (("--trace", "/no/such/trace"), "/no/such/trace: No such file or directory"),
    ],
)
def test_what_cannot_be_used_is_named_and_nothing_is_printed(files, capsys, flags, message):
    assert _simulate(files, *flags) == 2
    told = capsys.readouterr()
    assert f"legato simulate: {message}" in told.err
    assert told.out == ""


def test_a_bad_line_of_a_trace_gives_no_partial_result(files, capsys):
    with (files / "chat.jsonl").open("a") as trace:
        trace.write("\n{}")
    assert _simulate(files, "--json", files / "out.json") == 2
    told = capsys.readouterr()
    assert "chat.jsonl:201: not a request of a trace" in told.err
    assert (told.out, Path(files / "out.json").exists()) == ("", False)


def test_two_traces_of_one_name_are_refused(files, capsys):
    assert _simulate(files, "--trace", files / "chat.jsonl") == 2
    assert "two workloads of the same name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [((), "nothing to simulate: give --trace FILE or --workload NAME"), (("--workload", "trace"), "needs --trace")],
)
def test_without_a_trace_a_workload_must_be_named(files, capsys, flags, message):
    assert _simulate(files, *flags, trace=None) == 2
    assert message in capsys.readouterr().err


def test_problems_of_the_manifest_are_told_as_by_up(files, capsys):
    _manifest(files, {**SPEC, "scaling": {"prefill": {"min": 5, "max": 2}}})
    assert _simulate(files) == 2
    assert f"{files / 'chat.yaml'}: spec.scaling.prefill" in capsys.readouterr().err


def test_a_profile_that_is_none_is_refused(files, capsys):
    (files / "bad.json").write_text('{"source": "nowhere"}')
    assert _simulate(files, profile="bad.json") == 2
    assert "bad.json" in capsys.readouterr().err


def test_unified_workers_are_compared_with_nobody(files, capsys):
    _manifest(files, {**SPEC, "scaling": {"prefill": {"max": 0}, "decode": {"max": 8}}})
    assert _simulate(files, "--compare") == 2
    assert "need a manifest with a prefill pool" in capsys.readouterr().err
    assert _simulate(files) == 0


def test_flags_name_all_scalers_and_workloads():
    assert tuple(RIVALS) == arguments.SCALERS
    assert workloads.NAMES == arguments.WORKLOADS


@pytest.fixture
def recording(files):
    """Of a service whose prefill pool grew to 4 workers after 20 s."""
    quiet, busy = (Signals((prefiller(), decoder()), traffic) for traffic in (NO_TRAFFIC, arriving(600, 2000)))
    before = [recorded_round(2 * i, quiet) for i in range(10)]
    return recordings.write(files / "s.jsonl", before + [recorded_round(20 + 2 * i, busy, prefill=4) for i in range(9)])


def _replay(folder, *more):
    return main(["simulate", *map(str, ("-f", folder / "chat.yaml", "--signals", folder / "s.jsonl", *more))])


def test_a_recording_is_replayed_and_what_differs_is_told(files, recording, capsys):
    _manifest(files, {**SPEC, "scaling": {"prefill": {"max": 2}}})
    assert _replay(files, "--json", files / "out.json", "--html", files / "out.html") == 0
    told = capsys.readouterr().out
    assert told.startswith("prod/chat: 19 rounds in 0:00:36, from 2027-01-15 08:00:00 UTC\n")
    assert "Arrivals, capped by scaling.prefill.max" in told
    assert "What would have queued, been refused or been late with other sizes is not known" in told
    assert "GPU-hours: 0.03 recorded, 0.02 replayed" in told
    found = json.loads((files / "out.json").read_text())
    assert found["pools"]["prefill"]["most"] == 2
    assert [each["wish"] for each in found["changes"]] == [2]
    assert found["timeline"][-1]["replayed"] == {"prefill": 2, "decode": 1}
    assert "What a replay cannot show" in (files / "out.html").read_text()


def test_a_replay_gives_the_same_bytes_again(files, recording):
    written = []
    for _ in range(2):
        assert _replay(files, "--json", files / "out.json", "--html", files / "out.html") == 0
        written.append([(files / name).read_bytes() for name in ("out.json", "out.html")])
    assert written[0] == written[1]


def test_a_bad_line_of_a_recording_gives_no_partial_result(files, recording, capsys):
    with recording.open("ab") as file:
        file.write(b"{}\n")
    assert _replay(files, "--json", files / "out.json") == 2
    told = capsys.readouterr()
    assert "s.jsonl:20: not a round of a recording" in told.err
    assert (told.out, (files / "out.json").exists()) == ("", False)


@pytest.mark.parametrize(
    "flags",
    [
        ("--compare",),
        ("--profile", "gpu.json"),
        ("--workload", "step"),
        ("--start", "5s"),
        ("--skip", "5s"),
        ("--handoff-rate", 9),
    ],
)
def test_a_replay_has_no_workload_and_no_profile(files, recording, capsys, flags):
    assert _replay(files, *flags) == 2
    assert f"{flags[0]} cannot be used with --signals" in capsys.readouterr().err


def test_a_workload_needs_a_profile(files, capsys):
    assert main(["simulate", "-f", str(files / "chat.yaml"), "--workload", "step"]) == 2
    assert "--profile is required" in capsys.readouterr().err


def test_bounds_are_tuned_and_the_lines_to_set_are_printed(files, capsys):
    assert _simulate(files, "--tune", "--json", files / "out.json", "--html", files / "out.html") == 0
    told = capsys.readouterr().out
    assert "as written" in told
    assert "spec:\n  scaling:\n    prefill: {min: " in told
    found = json.loads((files / "out.json").read_text())
    assert found["trials"][0]["scaling"]["prefill"] == {"min": 1, "max": 8}
    assert found["chosen"]["gpu_hours"] <= found["trials"][0]["gpu_hours"]
    assert "scaleDownStabilization" in (files / "out.html").read_text()


@pytest.mark.parametrize("flag", ["--compare", "--elsewhere"])
def test_tuning_a_manifest_is_no_comparison(files, capsys, flag):
    assert _simulate(files, "--tune", flag) == 2
    assert "--tune searches the manifest's own fields" in capsys.readouterr().err


def test_objectives_that_no_number_of_workers_meets_are_told_before_it_begins(files, capsys):
    """Prompts have 1,500 tokens, so 1,024 or more: 2 steps of 10 ms, and 0.1 ms each."""
    _manifest(files, {**SPEC, "engine": {"chunkTokens": 512}, "slo": {"ttft": "50ms", "tpot": "1ms"}})
    assert _simulate(files) == 0
    ttft, tpot = (line for line in capsys.readouterr().err.splitlines() if "warning" in line)
    assert ttft.startswith(
        "legato simulate: warning: chat: slo.ttft is 50 ms, but prefill of 1024 tokens takes 122 ms "
    )
    assert tpot == (
        "legato simulate: warning: chat: slo.tpot is 1 ms, but a decode step of one sequence takes 10.1 ms "
        "(10 ms a step + 0.1 ms a sequence): no number of workers meets it"
    )


def test_prompts_that_are_mostly_cached_count_without_these_tokens(files, capsys):
    """476 of 1,500 are left: 256 or more, which take 36 ms."""
    requests = [
        {"timestamp": 500 * i, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2]} for i in range(200)
    ]
    (files / "chat.jsonl").write_text("\n".join(map(json.dumps, requests)))
    _manifest(files, {**SPEC, "slo": {"ttft": "50ms"}})
    assert _simulate(files) == 0
    assert "warning" not in capsys.readouterr().err


def test_reasonable_objectives_give_no_warning(files, capsys):
    assert _simulate(files) == 0
    assert "warning" not in capsys.readouterr().err
