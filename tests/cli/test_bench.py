"""`legato bench` asks what it says and counts what it gets."""

import asyncio
import json

import httpx
import pytest
from aiohttp import web
from answering_server import serving

from legato_cli.bench import client, load, report, workload
from legato_cli.bench.client import Record
from legato_cli.bench.workload import WorkloadRequest

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


def test_no_request_of_a_trace_is_none_and_no_fault(tmp_path):
    """As for `--warmup 0`."""
    assert workload.trace(tmp_path / "any.csv", 0, 4096, 1.0, TOKENS, 0) == []


@pytest.mark.anyio
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
    assert len(run.records) == 20
    assert most == 3


@pytest.mark.anyio
async def test_an_open_loop_does_not_wait_for_answers():
    arrived, all_here = [], asyncio.Event()

    async def send(request):
        arrived.append(request)
        if len(arrived) == 5:
            all_here.set()
        await all_here.wait()  # nobody is answered before the last one has come
        return Record(1, 0.0)

    run = await load.open_loop(send, workload.fixed(5, 1, 1, TOKENS, 0), 10_000.0, 0)
    assert len(run.records) == 5


async def ask(events: list[str], status: int = 200) -> Record:
    async def body():
        text = "".join(f"data: {event}\n\n" for event in events).encode()
        for start in range(0, len(text), 7):  # pieces that end anywhere
            yield text[start : start + 7]

    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body()))
    async with httpx.AsyncClient(base_url="http://bench", transport=transport) as http:
        return await client.complete(http, "m", WorkloadRequest((1, 2, 3), 2))


CHUNK = '{"choices": [{"text": "a"}]}'
USAGE = '{"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}}'


@pytest.mark.anyio
async def test_a_stream_is_measured_chunk_by_chunk():
    record = await ask([CHUNK, CHUNK, USAGE, "[DONE]"])
    assert (record.error, len(record.arrivals), record.output_tokens, record.cached_tokens) == ("", 2, 2, 1)
    assert record.ttft > 0
    assert record.tpot == pytest.approx(record.gaps[0])


@pytest.mark.anyio
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
    found = report.summarize("c = 1", load.Run([fast, slow, failed], 2.0), report.Objectives(1.0, 0.15))
    assert (found.requests, found.failed, found.output_tokens_per_second, found.goodput_per_second) == (3, 1, 3.0, 0.5)
    assert found.ttft_ms == {"p50": pytest.approx(100), "p90": pytest.approx(2000), "p99": pytest.approx(2000)}
    assert found.tpot_ms["p50"] == pytest.approx(100)
    assert "2/3" in report.table([found])


def test_a_summary_of_failures_alone_is_no_crash():
    found = report.summarize("c = 1", load.Run([Record(1, 0.0, error="x")], 1.0), report.Objectives(1, 1))
    assert (found.failed, found.ttft_ms["p99"], found.errors) == (1, 0.0, ("x",))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--concurrency", "0"), "--concurrency"),
        (("--rate", "-1"), "--rate"),
        (("--workload", "x"), "--workload"),
        (("--concurrency", "a"), "--concurrency"),
        (("--concurrency", "1", "--rate", "1"), "legato bench:"),
        (("--model", "m", "--workload", "trace"), "legato bench:"),
        (("--model", "m", "--workload", "trace", "--trace", "/dev/null"), "legato bench: /dev/null: no requests"),
        (("--burst", "8"), "not a valid phase: 8 (RATE:DURATION, such as 8:60s)"),
        (("--burst", "0:1s"), "0"),
        (("--burst", "1:1s", "--rate", "2"), "--rate and --burst cannot be given together"),
        (("--burst", "1:1s", "--workload", "trace"), "--burst has arrival times of its own"),
    ],
)
def test_bad_arguments_and_contradictions_exit_with_2(arguments, said, legato):
    code, _, err = legato("bench", "--url", "http://127.0.0.1:1", *arguments)
    assert code == 2
    assert said in err


@pytest.mark.anyio
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
