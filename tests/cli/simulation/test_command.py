"""`legato simulate`, as it is called."""

import json

import local_services
import pytest
import recordings
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller
from local_services import BUILTIN
from recordings import recorded_round

from legato_cli.simulation import arguments, workloads
from legato_cli.simulation.rivals import RIVALS
from legato_operator.autoscaler.signals import Signals

PROFILE = {
    "source": "round numbers",
    "step": {"perStep": 0.01, "perRow": 0.0001, "perContext": 0, "perToken": 0.0001, "perPair": 0},
    "kvTokens": 64_000,
    "startSeconds": 30,
}
BOUNDS = {"prefill": {"max": 8}, "decode": {"max": 8}}


@pytest.fixture
def files(tmp_path):
    """A manifest, a profile and a trace of 200 requests in 100 s."""
    _trace(tmp_path, lambda i: [i, -i])
    (tmp_path / "gpu.json").write_text(json.dumps(PROFILE))
    _manifest(tmp_path)
    return tmp_path


def _trace(folder, ids):
    requests = [
        {"timestamp": 500 * i, "input_length": 1500, "output_length": 20, "hash_ids": ids(i)} for i in range(200)
    ]
    (folder / "chat.jsonl").write_text("\n".join(map(json.dumps, requests)))


def _manifest(folder, **spec):
    local_services.write(folder / "chat.yaml", "chat", **{"scaling": BOUNDS, **spec})


@pytest.fixture
def simulate(files, legato):
    """Simulates the trace with the profile; `out` takes the results as JSON."""

    def run(*more, trace="chat.jsonl", profile="gpu.json"):
        given = ["-f", files / "chat.yaml", "--profile", files / profile]
        given += ["--trace", files / trace] if trace else []
        return legato("simulate", *given, *more)

    return run


@pytest.fixture
def results(files, simulate):
    """The results of a simulation that succeeds."""

    def run(*more, **given):
        assert simulate(*more, "--json", files / "out.json", **given).code == 0
        return json.loads((files / "out.json").read_text())["results"]

    return run


def test_a_trace_gives_a_row_of_figures_and_a_timeline_and_no_warning(simulate):
    code, out, err = simulate()
    assert code == 0
    rows = out.splitlines()
    assert rows[0].split()[1:10] == ["workload", "|", "scaler", "|", "good", "|", "GPU-hours", "|", "TTFT"]
    assert rows[2].split()[1:4] == ["chat", "|", "legato"]
    assert rows[2].endswith("| 0 of 200   |")
    assert rows[4] == "chat: 200 requests in 2 min"
    assert len(rows) == 8 + 20 - 1
    assert "warning" not in err


def test_same_seed_same_bytes(files, results):
    def written(seed):
        results("--workload", "step", "--seed", seed, "--duration", "60s", trace=None)
        return (files / "out.json").read_bytes()

    assert written(3) == written(3) != written(4)


def test_results_and_timelines_are_written_as_json_and_html(files, results):
    (result,) = results("--html", files / "out.html")
    assert (result["scaler"], result["workload"], result["offered"], result["finished"]) == ("legato", "chat", 200, 200)
    assert {"at", "queue_tokens", "kv_usage", "wish", "ready"} <= result["timeline"][0].keys()
    assert (files / "out.html").read_text().startswith("<!DOCTYPE html>")


def test_another_scaler_is_tuned_and_compared(simulate):
    code, out, _ = simulate("--scaler", "fixed")
    assert code == 0
    assert "| fixed (prefill" in out


def test_the_start_of_a_worker_can_be_given(results):
    flags = ("--workload", "step", "--rate", 8, "--duration", "240s", "--input-tokens", 1500)
    soon, late = (results(*flags, "--start", start, trace=None)[0]["attainment"] for start in ("5s", "90s"))
    assert soon > late + 0.1


def test_a_part_that_is_skipped_counts_in_nothing(results):
    (result,) = results("--skip", "50s")
    assert result["offered"] == result["finished"] == 100
    assert result["gpu_hours"] == pytest.approx(2 * 49.5 / 3600)


def test_requests_that_are_too_long_are_counted(files, simulate):
    _manifest(files, model={"source": {"builtin": BUILTIN}, "maxLength": 1024})
    code, out, _ = simulate()
    assert code == 0
    assert "200 are longer than model.maxLength, 1024 tokens, and are refused" in out
    assert "200 of 200" in out


@pytest.mark.parametrize(
    ("flags", "given", "message"),
    [
        (("--skip", "10m"), {}, "no request of chat counts: it ends within --skip"),
        (("--json", "/no/such/folder/out.json"), {}, "cannot write /no/such/folder/out.json"),
        (("--html", "/no/such/folder/out.html"), {}, "cannot write /no/such/folder/out.html"),
        (("--trace", "/no/such/trace"), {}, "/no/such/trace: No such file or directory"),
        (("--trace", "other/chat.jsonl"), {}, "two workloads of the same name"),
        ((), {"trace": None}, "nothing to simulate: give --trace FILE or --workload NAME"),
        (("--workload", "trace"), {"trace": None}, "needs --trace"),
        ((), {"profile": "bad.json"}, "bad.json"),
        (("--tune", "--compare"), {}, "--tune searches the manifest's own fields"),
        (("--tune", "--elsewhere"), {}, "--tune searches the manifest's own fields"),
    ],
)
def test_input_that_cannot_be_used_is_named_and_nothing_is_printed(files, simulate, monkeypatch, flags, given, message):
    monkeypatch.chdir(files)
    (files / "other").mkdir()
    (files / "other" / "chat.jsonl").write_text((files / "chat.jsonl").read_text())
    (files / "bad.json").write_text('{"source": "nowhere"}')
    code, out, err = simulate(*flags, **given)
    assert (code, out) == (2, "")
    assert err.startswith("legato simulate: ")
    assert message in err


def test_a_bad_line_of_a_trace_gives_no_partial_result(files, simulate):
    with (files / "chat.jsonl").open("a") as trace:
        trace.write("\n{}")
    code, out, err = simulate("--json", files / "out.json")
    assert (code, out, (files / "out.json").exists()) == (2, "", False)
    assert "chat.jsonl:201: not a request of a trace" in err


def test_problems_of_the_manifest_are_named_as_by_up(files, simulate):
    _manifest(files, scaling={"prefill": {"min": 5, "max": 2}})
    code, _, err = simulate()
    assert code == 2
    assert f"{files / 'chat.yaml'}: spec.scaling.prefill" in err


def test_unified_workers_are_compared_with_nobody(files, simulate):
    _manifest(files, scaling={"prefill": {"max": 0}, "decode": {"max": 8}})
    code, _, err = simulate("--compare")
    assert code == 2
    assert "need a manifest with a prefill pool" in err
    assert simulate().code == 0


def test_flags_name_all_scalers_and_workloads():
    assert tuple(RIVALS) == arguments.SCALERS
    assert workloads.NAMES == arguments.WORKLOADS


@pytest.fixture
def recording(files):
    """Of a service whose prefill pool grew to 4 workers after 20 s."""
    quiet, busy = (Signals((prefiller(), decoder()), traffic) for traffic in (NO_TRAFFIC, arriving(600, 2000)))
    before = [recorded_round(2 * i, quiet) for i in range(10)]
    return recordings.write(files / "s.jsonl", before + [recorded_round(20 + 2 * i, busy, prefill=4) for i in range(9)])


@pytest.fixture
def replay(files, recording, legato):
    def run(*more):
        return legato("simulate", "-f", files / "chat.yaml", "--signals", recording, *more)

    return run


def test_a_recording_is_replayed_and_differences_are_listed(files, replay):
    _manifest(files, scaling={"prefill": {"max": 2}})
    code, out, _ = replay("--json", files / "out.json", "--html", files / "out.html")
    assert code == 0
    assert out.startswith("prod/chat: 19 rounds in 0:00:36, from 2027-01-15 08:00:00 UTC\n")
    assert "Arrivals, capped by scaling.prefill.max" in out
    assert "What would have queued, been refused or been late with other sizes is not known" in out
    assert "GPU-hours: 0.03 recorded, 0.02 replayed" in out
    found = json.loads((files / "out.json").read_text())
    assert found["pools"]["prefill"]["most"] == 2
    assert [each["wish"] for each in found["changes"]] == [2]
    assert found["timeline"][-1]["replayed"] == {"prefill": 2, "decode": 1}
    assert "What a replay cannot show" in (files / "out.html").read_text()


def test_a_replay_gives_the_same_bytes_again(files, replay):
    written = []
    for _ in range(2):
        assert replay("--json", files / "out.json", "--html", files / "out.html").code == 0
        written.append([(files / name).read_bytes() for name in ("out.json", "out.html")])
    assert written[0] == written[1]


def test_a_bad_line_of_a_recording_gives_no_partial_result(files, recording, replay):
    with recording.open("ab") as file:
        file.write(b"{}\n")
    code, out, err = replay("--json", files / "out.json")
    assert (code, out, (files / "out.json").exists()) == (2, "", False)
    assert "s.jsonl:20: not a round of a recording" in err


@pytest.mark.parametrize(
    "flags", ["--compare", "--profile gpu.json", "--workload step", "--start 5s", "--skip 5s", "--handoff-rate 9"]
)
def test_a_replay_has_no_workload_and_no_profile(replay, flags):
    code, _, err = replay(*flags.split())
    assert code == 2
    assert f"{flags.split()[0]} cannot be used with --signals" in err


def test_a_workload_needs_a_profile(files, legato):
    code, _, err = legato("simulate", "-f", files / "chat.yaml", "--workload", "step")
    assert code == 2
    assert "--profile is required" in err


def test_bounds_are_tuned_and_the_lines_to_set_are_printed(files, simulate):
    code, out, _ = simulate("--tune", "--json", files / "out.json", "--html", files / "out.html")
    assert code == 0
    assert "as written" in out
    assert "spec:\n  scaling:\n    prefill: {min: " in out
    found = json.loads((files / "out.json").read_text())
    assert found["trials"][0]["scaling"]["prefill"] == {"min": 1, "max": 8}
    assert found["chosen"]["gpu_hours"] <= found["trials"][0]["gpu_hours"]
    assert "scaleDownStabilization" in (files / "out.html").read_text()


def test_objectives_that_no_number_of_workers_meets_are_named_before_it_begins(files, simulate):
    """Prompts have 1,500 tokens, so 1,024 or more: 2 steps of 10 ms, and 0.1 ms each."""
    _manifest(files, engine={"chunkTokens": 512}, slo={"ttft": "50ms", "tpot": "1ms"})
    code, _, err = simulate()
    assert code == 0
    ttft, tpot = (line for line in err.splitlines() if "warning" in line)
    assert ttft.startswith(
        "legato simulate: warning: chat: slo.ttft is 50 ms, but prefill of 1024 tokens takes 122 ms "
    )
    assert tpot == (
        "legato simulate: warning: chat: slo.tpot is 1 ms, but a decode step of one sequence takes 10.1 ms "
        "(10 ms a step + 0.1 ms a sequence): no number of workers meets it"
    )


def test_prompts_that_are_mostly_cached_count_without_these_tokens(files, simulate):
    """476 of 1,500 are left: 256 or more, which take 36 ms."""
    _trace(files, lambda i: [1, 2])
    _manifest(files, slo={"ttft": "50ms"})
    code, _, err = simulate()
    assert (code, "warning" in err) == (0, False)
