"""`legato bench` sends the requests that it says and counts the answers that it gets; its profiles, and its bursts."""

import asyncio
import json

import httpx
import pytest
from aiohttp import web
from answering_server import serving
from known_signals import arriving, decoder, prefiller, spec
from local_services import answered

from legato_cli.bench import arguments, burst, client, load, matrix, profile, report, workload
from legato_cli.bench.burst import BurstPhase, ScalingWatch
from legato_cli.bench.client import Record
from legato_cli.bench.matrix import Arrivals
from legato_cli.bench.workload import WorkloadRequest
from legato_engine.runner.profile import StepTimes
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Signals

TOKENS = workload.TokenRange(10, 1000)


def test_fixed_prompts_share_nothing_and_repeat_by_seed():
    first = workload.fixed(3, 20, 5, TOKENS, seed=1)
    assert first == workload.fixed(3, 20, 5, TOKENS, seed=1)
    assert first != workload.fixed(3, 20, 5, TOKENS, seed=2)
    assert len({r.prompt[:4] for r in first}) == 3
    assert all(len(r.prompt) == 20 and min(r.prompt) >= 10 and max(r.prompt) < 1000 for r in first)


def test_shared_prefixes_are_shared():
    requests = workload.shared_prefix(50, 40, 5, TOKENS, 1, prefixes=3, share=0.5)
    assert len({r.prompt[:20] for r in requests}) == 3
    assert len({r.prompt[20:] for r in requests}) == 50
    uneven = workload.shared_prefix(50, 100, 5, TOKENS, 1, prefixes=1, share=0.29)  # 0.29 · 100 is 28.999…
    assert len({r.prompt[:29] for r in uneven}) == 1


def test_a_mooncake_trace_keeps_its_sharing_when_scaled(tmp_path):
    rows = [
        {"timestamp": 1000, "input_length": 1024, "output_length": 10, "hash_ids": [0, 1]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 500, "hash_ids": [0, 2, 3]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    a, b = workload.trace(path, 10, max_tokens=200, speed=2.0, tokens=TOKENS, seed=0)
    assert (a.at, b.at) == (0.0, 1.0)
    assert len(b.prompt) + b.output_tokens <= 200
    assert len(b.prompt) == 150
    assert a.prompt[:51] == b.prompt[:51]
    assert a.prompt[51:102] != b.prompt[51:102]


async def test_a_closed_loop_keeps_its_concurrency():
    running, most = 0, 0

    async def send(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Record(1, 0.0)

    run = await load.closed(send, workload.fixed(20, 1, 1, TOKENS, 0), 3)
    assert (len(run.records), most) == (20, 3)


async def test_an_open_loop_does_not_wait_for_answers():
    all_here = asyncio.Barrier(5)  # nobody is answered before the last one has come

    async def send(request):
        await all_here.wait()
        return Record(1, 0.0)

    run = await load.open_loop(send, workload.fixed(5, 1, 1, TOKENS, 0), 10_000.0, 0)
    assert len(run.records) == 5


async def ask(events, status=200):
    async def body():
        text = "".join(f"data: {event}\n\n" for event in events).encode()
        for start in range(0, len(text), 7):  # pieces that end anywhere
            yield text[start : start + 7]

    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body()))
    async with httpx.AsyncClient(base_url="http://bench", transport=transport) as http:
        return await client.complete(http, "m", WorkloadRequest((1, 2, 3), 2))


CHUNK = '{"choices": [{"text": "a"}]}'
USAGE = '{"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}}'


async def test_a_stream_is_measured_chunk_by_chunk():
    record = await ask([CHUNK, CHUNK, USAGE, "[DONE]"])
    assert (record.error, len(record.arrivals), record.output_tokens, record.cached_tokens) == ("", 2, 2, 1)
    assert record.ttft > 0
    assert record.tpot == pytest.approx(record.gaps[0])


@pytest.mark.parametrize(
    ("events", "status", "text"),
    [
        (["boom"], 503, "503: data: boom"),
        (["[DONE]"], 200, "after 0 of 2 tokens"),
        ([CHUNK, "[DONE]"], 200, "after 0 of 2 tokens"),
        ([CHUNK, '{"error": {"message": "worker lost"}}'], 200, "worker lost"),
    ],
)
async def test_failures_are_recorded_with_their_reason(events, status, text):
    assert text in (await ask(events, status)).error


def test_a_summary_counts_only_answers_and_goodput_only_kept_objectives():
    fast = Record(10, 0.0, [0.1, 0.2, 0.3], output_tokens=3)
    slow = Record(10, 0.0, [2.0, 2.1, 2.2], output_tokens=3)
    failed = Record(10, 0.0, error="503")
    made = report.summarize("c = 1", load.LoadRun([fast, slow, failed], 2.0), report.LatencyObjectives(1.0, 0.15))
    assert (made.requests, made.failed, made.output_tokens_per_second, made.goodput_per_second) == (3, 1, 3.0, 0.5)
    assert made.ttft_ms == pytest.approx({"p50": 100, "p90": 2000, "p99": 2000})
    assert made.tpot_ms["p50"] == pytest.approx(100)
    assert "2/3" in report.table([made])
    none = report.summarize("c = 1", load.LoadRun([failed], 1.0), report.LatencyObjectives(1, 1))
    assert (none.failed, none.ttft_ms["p99"], none.errors) == (1, 0.0, ("503",))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--concurrency 0", "--concurrency"),
        ("--rate -1", "--rate"),
        ("--workload x", "--workload"),
        ("--concurrency a", "--concurrency"),
        ("--concurrency 1 --rate 1", "legato bench:"),
        ("--model m --workload trace", "legato bench:"),
        ("--model m --workload trace --trace /dev/null", "legato bench: /dev/null: no requests"),
        ("--burst 8", "not a valid phase: 8 (RATE:DURATION, such as 8:60s)"),
        ("--burst 0:1s", "0"),
        ("--burst 1:1s --rate 2", "--rate and --burst cannot be given together"),
        ("--burst 1:1s --workload trace", "--burst has arrival times of its own"),
        ("--input-tokens 1,2", "several --input-tokens need --matrix"),
        ("--json /nowhere/found.json", "--json: cannot write to /nowhere/found.json"),
        ("--matrix --burst 1:1s", "--matrix and --burst cannot be given together"),
        ("--matrix --rate 1 --concurrency 1", "--concurrency and --rate cannot be given together"),
        ("--matrix --workload trace", "--workload trace cannot be given with it"),
        ("--matrix --cell 1s", "--cell must be longer than the objective for the first token (1 s)"),
        ("--matrix --sampling warm", "not a valid sampling: warm (greedy, sampled, penalized)"),
        ("--matrix --json /", "--json: cannot write to /"),
    ],
)
def test_bad_arguments_and_contradictions_exit_with_2(arguments, said, legato):
    code, _, err = legato("bench", "--url", "http://127.0.0.1:1", *arguments.split())
    assert (code, said in err) == (2, True)


@pytest.mark.parametrize(("key", "sent"), [("sk-1", "Bearer sk-1"), (None, None)])
async def test_requests_carry_the_api_key_of_the_environment(key, sent, monkeypatch, legato):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    received = []

    async def answer(request):
        received.append(request.headers.get("Authorization"))
        return web.json_response({"data": [{"id": "m"}]} if request.method == "GET" else {})

    async with serving(answer) as address:
        flags = ("--concurrency", 1, "--requests", 1, "--warmup", 0)
        await asyncio.to_thread(legato, "bench", "--url", f"http://{address}", *flags)
    assert received == [sent, sent]  # for the list of models, and for the completion


PREFILL = {"per_step": 0.5, "per_token": 0.02, "per_pair": 0.001, "chunk_tokens": 512, "context": 9.0}
DECODE = {"per_step": 0.25, "per_row": 0.01, "per_context": 0.003}
FEW_SHORT = {**PREFILL, "per_token": 9.0}  # prompts that decode workers computed themselves
SLOWER = {name: 3 * value for name, value in DECODE.items()}


def _worker(role, prefill=None, decode=None, blocks=100):
    sizes = {"block_size": 16, "total_blocks": blocks, "ranks": 2}
    return {"role": role, "prefill_cost": prefill, "decode_cost": decode} | sizes


PREFILLING, DECODING = _worker("prefill", PREFILL), _worker("decode", None, DECODE, blocks=90)
UNIFIED = [_worker("unified", PREFILL, DECODE), _worker("unified", PREFILL, SLOWER)]


@pytest.mark.parametrize(
    ("workers", "step", "kv_tokens"),
    [
        ([PREFILLING, _worker("decode", FEW_SHORT, DECODE), DECODING, _worker("decode")], (0.25, 0.01, 0.003), 1440),
        (UNIFIED, (0.5, 0.02, 0.006), 1600),
    ],
    ids=["prompts by prefill workers, decoding by the others", "equal workers are averaged, unified ones report both"],
)
def test_a_profile_has_the_costs_that_running_workers_report(workers, step, kv_tokens):
    made = profile.of_workers(workers, "a test")
    assert made.step == StepTimes(*step, 0.02, 0.001)
    assert (made.source, made.kv_tokens, made.start_seconds, made.tensor) == ("a test", kv_tokens, 0.0, 2)


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([DECODING], "the cost of prompts"),
        ([PREFILLING], "the cost of decoding"),
        ([PREFILLING | {"ranks": 4}, DECODING], r"different degrees \(2, 4\)"),
    ],
)
def test_costs_that_nobody_measured_are_not_written(workers, said):
    with pytest.raises(ValueError, match=said):
        profile.of_workers(workers, "a test")


@pytest.mark.parametrize("context", [16, 300, 4096])
def test_loads_of_a_profile_fit_the_context_and_repeat_nothing(context):
    requests = [request for _, _, each in profile.loads(context, TOKENS, 1) for request in each]
    assert all(len(request.prompt) + request.output_tokens <= context for request in requests)
    assert all(2 * len(request.prompt) <= context for request in requests)
    if context > 100:
        assert len({request.prompt for request in requests}) == len(requests)
        assert len({len(request.prompt) for request in requests}) > 1


PHASES = [BurstPhase(5, 20), BurstPhase(50, 10), BurstPhase(1, 30)]
BEGAN = 1_796_115_600.0  # 2026-12-01T09:00:00Z


def _change(second):
    known = Signals((prefiller(), decoder()), arriving(600, 2000))
    made = decide(known, {}, spec(largest=3), {"prefill": 1, "decode": 1}, 0.0).pools
    return {"pool": "prefill", **record.entry(made["prefill"], f"2026-12-01T09:00:{second}Z")}


def test_arrivals_follow_each_phase_s_rate_in_its_own_time_and_repeat_by_seed():
    sent = burst.arrivals(PHASES, 1)
    assert sent == burst.arrivals(PHASES, 1) != burst.arrivals(PHASES, 2)
    assert [at for _, at in sent] == sorted(at for _, at in sent)
    for number, (begins, ends) in enumerate([(0, 20), (20, 30), (30, 60)]):
        times = [at for phase, at in sent if phase == number]
        assert all(begins <= at < ends for at in times)
        assert len(times) == pytest.approx(PHASES[number].rate * PHASES[number].seconds, rel=0.4)


def test_a_request_counts_in_the_phase_that_it_arrived_in():
    records = [Record(tokens, 0.0) for tokens in range(3)]
    runs = burst.by_phase(records, [(0, 1.0), (0, 19.0), (2, 40.0)], PHASES)
    assert [run.records for run in runs] == [records[:2], [], records[2:]]
    assert [run.seconds for run in runs] == [20, 10, 30]


async def test_only_changes_of_this_time_are_listed_below_their_phase_with_their_arithmetic():
    before, during, later = map(_change, ("00", "25", "59"))
    answers = [[before], [before, during], [during, later]]

    def ask():
        return {"records": answers.pop(0) if len(answers) > 1 else answers[0]}

    watch = ScalingWatch(ask, BEGAN)
    for first in (True, False, False):
        await watch.poll(first=first)
    lines = list(burst.lines(watch, PHASES))
    text = "\n".join(lines)
    change = "  +25 s  prefill 1 -> 3  Arrivals: 4 needed, capped by scaling.prefill.max"
    assert lines[:4] == ["5 req/s for 20 s:", "  no change", "50 req/s for 10 s:", change]
    assert "    3.33 = " in text
    assert "fittingWork / minute / utilisation" in text
    assert "fittingWork 150" in text
    assert "  +59 s  prefill 1 -> 3" in text.partition("1 req/s for 30 s:")[2]
    assert text.count("prefill 1 -> 3") == 2


async def _token(request):
    """One token as an answer, and the list of models."""
    if request.method == "GET":
        return web.json_response({"data": [{"id": "m"}]})
    events = ({"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": 1}})
    return web.Response(text="".join(f"data: {json.dumps(event)}\n\n" for event in events))


async def test_the_command_measures_phases_and_asks_a_running_service(tmp_path, legato):
    asked, file = [], tmp_path / "found.json"

    async def answer(order):
        asked.append(order)
        records = [_change("25")] if len(asked) > 1 else []
        return {"status": {"scaling": {"pools": {}, "records": records}}}

    async with serving(_token) as address:
        flags = ("--burst", "40:500ms,10:500ms", "--input-tokens", 4, "--output-tokens", 1, "--json", file)
        code, out, _ = await answered(legato, answer, "bench", "--url", f"http://{address}", *flags)
    assert code == 0
    assert "| 40 req/s for 0.5 s |" in out
    assert "prefill 1 -> 3  Arrivals: 4 needed" in out
    written = json.loads(file.read_text())
    assert [load["load"] for load in written["loads"]] == ["40 req/s for 0.5 s", "10 req/s for 0.5 s"]
    assert written["loads"][0]["failed"] == 0
    assert [change["reason"] for change in written["scaling"]] == ["Arrivals"]


SLO = report.LatencyObjectives(1.0, 0.1)
GOOD = Record(10, 0.0, [0.5, 0.6], 2, id="good")
LATE = Record(10, 0.0, [3.0, 3.1], 2, id="a")


def _route(stage="ended", preemptions=0, **seconds):
    return {"id": "a", "stage": stage, "preemptions": preemptions, "seconds": seconds}


@pytest.mark.parametrize(
    ("record", "route", "missed"),
    [
        (GOOD, None, {}),
        (LATE, _route(queue=2.0, prefill=0.5, handoff=0.5), {"queue": 1}),
        (LATE, _route(queue=0.1, prefill=2.4, handoff=0.5), {"prefill": 1}),
        (Record(10, 0.0, [0.5, 2.5], 2, id="a"), _route(queue=0.4), {"decode": 1}),
        (Record(10, 0.0, [0.5, 2.5], 2, id="a"), _route(queue=0.4, preemptions=2), {"preempted": 1}),
        (Record(10, 0.0, cut=2.0, id="a"), _route("prefilling"), {"prefill": 1}),
        (Record(10, 0.0, cut=2.0, id="a"), _route("queued"), {"queue": 1}),
        (Record(10, 0.0, cut=2.0), None, {"queue": 1}),
        (Record(10, 0.0, [0.5], 1, cut=0.55, id="a"), _route("decoding", queue=0.4), {}),
        (Record(10, 0.0, [0.5], 1, cut=0.9, id="a"), _route("decoding", queue=0.4), {"decode": 1}),
        (Record(10, 0.0, error="503", refused="queue_full"), None, {"refused (queue_full)": 1}),
        (Record(10, 0.0, error="502"), None, {"failed": 1}),
    ],
)
def test_a_request_that_misses_an_objective_is_counted_by_what_took_longest(record, route, missed):
    (cell,) = matrix.cells([10], [2], ["greedy"], [Arrivals(rate=2.0)], "m", [])
    made = matrix.judge(cell, load.LoadRun([GOOD, record], 3.0), SLO, {"a": route} if route else {})
    assert (made.missed, made.summary.requests, made.met) == (missed, 2, not missed)


def test_the_envelope_of_a_shape_ends_where_one_of_its_arrivals_misses_the_objectives():
    arrivals = [Arrivals(rate=rate) for rate in (1.0, 2.0, 4.0)]
    cells = matrix.cells([10], [2], ["greedy", "sampled"], arrivals, "m", ["a1", "a2"])
    assert [cell.adapter for cell in cells[::3]] == ["none", "2 adapters"] * 2
    records = [[GOOD], [LATE], [GOOD], *[[GOOD]] * 3, *[[LATE]] * 6]
    lines = matrix.envelope(
        [matrix.judge(c, load.LoadRun(r, 1.0), SLO, {}) for c, r in zip(cells, records, strict=True)]
    )
    assert lines.splitlines()[2:5] == [
        "| 10 | 2 | greedy | none | 1 req/s | 2 req/s: 0% kept, queue 1; 4 req/s: 100% kept, – |",
        "| 10 | 2 | greedy | 2 adapters | 4 req/s | not reached |",
        "| 10 | 2 | sampled | none | none of them | "
        + "; ".join(f"{rate} req/s: 0% kept, queue 1" for rate in (1, 2, 4))
        + " |",
    ]


def _matrix_server(full):
    """A server with an adapter, which answers `full` of four requests and refuses the others."""
    bodies = []

    async def answer(request):
        if request.method == "GET":
            return web.json_response({"data": [{"id": "m"}, {"id": "ad", "parent": "m"}, {"id": "x", "parent": "y"}]})
        bodies.append(await request.json())
        if len(bodies) % 4 in range(1, full + 1):
            return await _token(request)
        return web.json_response({}, status=503, headers={"x-legato-drop-reason": "queue_full"})

    return answer, bodies


MATRIX = ("--matrix", "--output-tokens", 1, "--rate", 200, "--requests", 4, "--warmup", 0, "--slo-ttft", "9s")


async def test_a_matrix_has_cells_for_the_adapters_and_counts_refusals_without_failing(tmp_path, legato):
    answer, bodies = _matrix_server(full=2)
    asked, file = [], tmp_path / "found.json"

    async def status(order):
        asked.append(order["do"])
        return {"status": {"slo": {"tpot": "70ms"}}} if order["do"] == "status" else {"error": "no gateway"}

    async with serving(answer) as address:
        flags = ("--input-tokens", "3,5", "--sampling", "sampled", "--json", file)
        command = ("bench", "--url", f"http://{address}", *MATRIX, *flags)
        code, out, err = await answered(legato, status, *command)
    cells = json.loads(file.read_text())["cells"]
    shapes = [(size, adapter) for size in (3, 5) for adapter in ("none", "1 adapter")]
    assert (code, [(cell["input_tokens"], cell["adapter"]) for cell in cells]) == (0, shapes)
    assert [(len(body["prompt"]), body["model"], body["top_p"]) for body in bodies[::4]] == [
        (size, {"none": "m"}.get(adapter, "ad"), 0.95) for size, adapter in shapes
    ]
    assert [cell["missed"] for cell in cells] == [{"refused (queue_full)": 2}] * 4
    assert "objectives: TTFT 9 s, TPOT 70 ms" in err
    assert "queue and preemptions are not known: no gateway" in err
    assert "none of them | 200 req/s: 50% kept, refused (queue_full) 2 |" in out


def test_every_sampling_of_the_command_line_has_parameters():
    assert tuple(matrix.SAMPLINGS) == arguments.SAMPLINGS
