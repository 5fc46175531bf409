"""`legato simulate`, as it is called."""

import json

import local_services
import pytest
import recordings
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller
from recordings import recorded_round

from legato_cli.simulate import arguments
from legato_operator.autoscaler.signals import Signals
from legato_simulator.baselines import BASELINES
from legato_simulator.workload import synthetic

PROFILE = {
    "source": "round numbers",
    "step": {"perStep": 0.01, "perRow": 0.0001, "perContext": 0, "perToken": 0.0001, "perPair": 0},
    "kvTokens": 64_000,
    "startSeconds": 30,
}
BOUNDS = {"prefill": {"max": 8}, "decode": {"max": 8}}
UNIFIED = {"scaling": {"prefill": {"max": 0}, "decode": {"max": 8}}}
STEP = ("--workload", "step")


def _trace(ids):
    """200 requests in 100 s."""
    requests = (
        {"timestamp": 500 * i, "input_length": 1500, "output_length": 20, "hash_ids": ids(i)} for i in range(200)
    )
    return "\n".join(map(json.dumps, requests))


@pytest.fixture
def files(tmp_path):
    """A profile, a trace, and a recording of a service whose prefill pool grew to 4 workers after 20 s."""
    (tmp_path / "chat.jsonl").write_text(_trace(lambda i: [i, -i]))
    (tmp_path / "gpu.json").write_text(json.dumps(PROFILE))
    quiet = Signals((prefiller(), decoder()), NO_TRAFFIC)
    busy = Signals((prefiller(queue_tokens=160_000), decoder()), arriving(420, 2000))
    before = [recorded_round(2 * i, quiet) for i in range(10)]
    recordings.write(tmp_path / "s.jsonl", before + [recorded_round(20 + 2 * i, busy, prefill=4) for i in range(9)])
    return tmp_path


@pytest.fixture
def simulate(files, legato, monkeypatch):
    """Simulates the trace with the profile, or what the flags ask for, from the folder of the files."""
    monkeypatch.chdir(files)

    def run(*flags, trace="chat.jsonl", profile="gpu.json", spec=None):
        local_services.write(files / "chat.yaml", "chat", **{"scaling": BOUNDS, **(spec or {})})
        given = [*(["--profile", profile] if profile else []), *(["--trace", trace] if trace else [])]
        return legato("simulate", "-f", files / "chat.yaml", *given, *flags)

    return run


@pytest.fixture
def replay(simulate):
    return lambda *flags, **given: simulate("--signals", "s.jsonl", *flags, trace=None, profile=None, **given)


@pytest.fixture
def results(files, simulate):

    def run(*flags, **given):
        assert simulate(*flags, "--json", "out.json", **given).code == 0
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


def test_the_same_input_gives_the_same_bytes(files, simulate, replay):
    def written(run, *flags, **given):
        assert run(*flags, "--json", "out.json", "--html", "out.html", **given).code == 0
        return (files / "out.json").read_bytes(), (files / "out.html").read_bytes()

    one, again, other = (written(simulate, *STEP, "--seed", n, "--duration", "60s", trace=None) for n in (3, 3, 4))
    assert one == again != other
    assert written(replay) == written(replay)


def test_results_and_timelines_are_written_as_json_and_html(files, results):
    (result,) = results("--html", "out.html")
    assert (result["scaler"], result["workload"], result["offered"], result["finished"]) == ("legato", "chat", 200, 200)
    assert {"at", "queue_tokens", "kv_usage", "desired", "ready"} <= result["timeline"][0].keys()
    assert (files / "out.html").read_text().startswith("<!DOCTYPE html>")


def test_another_scaler_is_tuned_and_compared(simulate):
    code, out, _ = simulate("--scaler", "fixed")
    assert (code, "| fixed (prefill" in out) == (0, True)


def test_a_part_that_is_skipped_counts_in_nothing(results):
    (result,) = results("--skip", "50s")
    assert result["offered"] == result["finished"] == 100
    assert result["gpu_hours"] == pytest.approx(2 * 49.5 / 3600)


def test_a_single_request_is_simulated(files, results):
    (files / "one.jsonl").write_text(_trace(lambda i: []).splitlines()[0])
    (result,) = results("--html", "out.html", trace="one.jsonl")
    assert (result["offered"], result["finished"], result["attainment"]) == (1, 1, 1.0)


ONLY = {"trace": None, "profile": None}
NOT_REPLAYED = ["--compare", "--profile gpu.json", "--workload step", "--start 5s", "--skip 5s", "--handoff-rate 9"]


@pytest.mark.parametrize(
    ("flags", "given", "message"),
    [
        ("--skip 10m", {}, "no request of chat counts: it ends within --skip"),
        ("--workload steady --rate 0.001 --duration 1s", {"trace": None}, "steady has no requests"),
        ("--json /no/such/folder/out.json", {}, "cannot write /no/such/folder/out.json"),
        ("--html /no/such/folder/out.html", {}, "cannot write /no/such/folder/out.html"),
        ("--trace /no/such/trace", {}, "/no/such/trace: No such file or directory"),
        ("--trace other/chat.jsonl", {}, "two workloads of the same name"),
        ("--trace bad.jsonl", {}, "bad.jsonl:201: not a request of a trace"),
        ("", {"trace": None}, "nothing to simulate: give --trace FILE or --workload NAME"),
        ("--workload trace", {"trace": None}, "needs --trace"),
        ("--workload step", ONLY, "--profile is required"),
        ("", {"profile": "bad.json"}, "bad.json"),
        ("--tune --compare", {}, "--tune searches the manifest's own fields"),
        ("--tune --elsewhere", {}, "--tune searches the manifest's own fields"),
        ("--compare", {"spec": UNIFIED}, "need a manifest with a prefill pool"),
        ("--signals bad-s.jsonl", ONLY, "bad-s.jsonl:20: not a round of a recording"),
        *(
            (f"--signals s.jsonl {flag}", ONLY, f"{flag.split()[0]} cannot be used with --signals")
            for flag in NOT_REPLAYED
        ),
    ],
)
def test_input_that_cannot_be_used_is_named_and_nothing_is_printed_or_written(files, simulate, flags, given, message):
    (files / "other").mkdir()
    (files / "other" / "chat.jsonl").write_text(_trace(lambda i: []))
    (files / "bad.json").write_text('{"source": "nowhere"}')
    for name, bad in (("chat.jsonl", "bad.jsonl"), ("s.jsonl", "bad-s.jsonl")):
        (files / bad).write_text((files / name).read_text().rstrip() + "\n{}\n")
    code, out, err = simulate("--json", "out.json", *flags.split(), **given)
    assert (code, out, (files / "out.json").exists()) == (2, "", False)
    assert err.splitlines()[-1].startswith("legato simulate: ")
    assert message in err


def test_flags_name_all_scalers_and_workloads():
    assert (tuple(BASELINES), synthetic.NAMES) == (arguments.SCALERS, arguments.WORKLOADS)


def test_a_recording_is_replayed_and_differences_are_listed(files, replay):
    code, out, _ = replay("--json", "out.json", "--html", "out.html", spec={"scaling": {"prefill": {"max": 2}}})
    assert code == 0
    assert out.startswith("prod/chat: 19 rounds in 0:00:36, from 2027-01-15 08:00:00 UTC\n")
    assert "Backlog, capped by scaling.prefill.max" in out
    assert "Requests that other sizes would have queued, refused or delayed are unknown" in out
    assert "GPU-hours: 0.03 recorded, 0.02 replayed" in out
    written = json.loads((files / "out.json").read_text())
    assert written["pools"]["prefill"]["most"] == 2
    assert [each["recommended"] for each in written["changes"]] == [2]
    assert written["timeline"][-1]["replayed"] == {"prefill": 2, "decode": 1}
    assert "What a replay cannot show" in (files / "out.html").read_text()


def test_bounds_are_tuned_and_the_lines_to_set_are_printed(files, simulate):
    code, out, _ = simulate("--tune", "--json", "out.json", "--html", "out.html")
    assert code == 0
    assert "as written" in out
    assert "spec:\n  scaling:\n    prefill: {min: " in out
    written = json.loads((files / "out.json").read_text())
    assert written["trials"][0]["scaling"]["prefill"] == {"min": 1, "max": 8}
    assert written["chosen"]["gpu_hours"] <= written["trials"][0]["gpu_hours"]
    assert "scaleDownStabilization" in (files / "out.html").read_text()


def test_objectives_that_no_number_of_workers_meets_are_named_before_it_begins(simulate):
    """Prompts have 1,500 tokens, so 1,024 or more: 2 steps of 10 ms, and 0.1 ms each."""
    code, _, err = simulate(spec={"engine": {"chunkTokens": 512}, "slo": {"ttft": "50ms", "tpot": "1ms"}})
    assert code == 0
    ttft, tpot = (line for line in err.splitlines() if "warning" in line)
    warning = "legato simulate: warning: chat: "
    assert ttft.startswith(f"{warning}slo.ttft is 50 ms, but prefill of 1024 tokens takes 122 ms ")
    assert tpot == (
        f"{warning}slo.tpot is 1 ms, but a decode step of one sequence takes 10.1 ms "
        "(10 ms a step + 0.1 ms a sequence): more workers cannot meet it"
    )


def test_times_of_another_degree_than_the_profile_s_are_named_as_assumed(simulate):
    code, _, err = simulate(spec={"decode": {"parallelism": {"tensor": 4}}})
    assumed = (
        "legato simulate: spec.decode.parallelism.tensor is 4, the profile's 1: its times are assumed, not measured"
    )
    assert (code, [line for line in err.splitlines() if "assumed" in line]) == (0, [assumed])


def test_prompts_that_are_mostly_cached_count_without_these_tokens(files, simulate):
    """476 of 1,500 are left: 256 or more, which take 36 ms."""
    (files / "chat.jsonl").write_text(_trace(lambda i: [1, 2]))
    code, _, err = simulate(spec={"slo": {"ttft": "50ms"}})
    assert (code, "warning" in err) == (0, False)
