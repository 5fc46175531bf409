"""Log probabilities of a streamed response: many alternatives of many tokens, kept as they are spelled."""

import gc
import json
import tracemalloc

from tests.support.response_events import read

from legato_gateway.errors import WorkerFailed
from legato_gateway.json_encoding import encode
from legato_gateway.openai.answer import AnswerFormat
from legato_gateway.openai.responses.writer import ResponseWriter
from legato_gateway.request import Delta, TokenText, Usage
from legato_gateway.serving.writer import CollectedChoice
from legato_protocol.stream import TokenLogprobs, TopLogprob

TOKENS = 300
TOP = tuple(TopLogprob(id, -id / 7) for id in range(20))


def writer() -> ResponseWriter:
    known = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m"}
    usual = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return ResponseWriter({**known, **usual}, True, lambda id: b" word%d" % id, AnswerFormat())


def token(number: int) -> TokenText:
    text = f" word{number % 20}"
    return TokenText(number % 20, text, text.encode(), TokenLogprobs(-number / 7, TOP), 6 * number)


def test_those_of_all_deltas_are_in_what_ends_it() -> None:
    """Deltas of one token, of several, and of none."""
    made = writer()
    batches = [(token(0),), (), (token(1), token(2)), (token(3),)]
    said = b"".join([made.delta(0, Delta(0, "text", tokens)) for tokens in batches])
    found = read((said + made.delta(0, Delta(0, "", (), "stop")) + made.end(Usage())).decode())
    told = [one for event in found if event["type"].endswith("text.delta") for one in event["logprobs"]]
    assert [one["logprob"] for one in told] == [-number / 7 for number in range(4)]
    assert all(len(one["top_logprobs"]) == 20 for one in told)
    (done,) = (event for event in found if event["type"].endswith("text.done"))
    (part,) = (event["part"] for event in found if event["type"].endswith("part.done"))
    (item,) = found[-1]["response"]["output"]
    assert done["logprobs"] == part["logprobs"] == item["content"][0]["logprobs"] == told
    assert json.loads(encode(made.final)) == found[-1]["response"]
    answer = CollectedChoice(0, ["text"] * 4, [one for tokens in batches for one in tokens], "stop")
    whole = json.loads(writer().whole([answer], Usage()))
    assert whole["output"][0]["content"] == item["content"]


def test_a_stream_that_fails_has_those_so_far() -> None:
    made = writer()
    said = made.delta(0, Delta(0, "text", (token(0),))) + made.failed(WorkerFailed("gone"))
    *_, delta, failed = read(said.decode())
    assert failed["response"]["output"][0]["content"][0]["logprobs"] == delta["logprobs"] != []


def test_a_stream_keeps_no_more_of_them_than_their_bytes() -> None:
    made = writer()
    said = len(made.delta(0, Delta(0, "x")))
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(TOKENS):
            said += len(made.delta(0, Delta(0, "x", (token(number),))))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1.2 * said
