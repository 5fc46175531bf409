"""Log probabilities of a streamed response: many alternatives of many tokens, kept as they are spelled."""

import json
import random
from typing import Any

import pytest
from budget import times
from msgspec.json import encode
from tests.support.response_events import read

from legato_gateway.errors import WorkerFailed
from legato_gateway.openai.chat.answer import AnswerFormat
from legato_gateway.openai.chat.tool_definitions import CallFormat
from legato_gateway.openai.responses.writer import ResponseWriter
from legato_gateway.parsers.reasoning.support import ReasoningFormat
from legato_gateway.request import Delta, TokenText, Usage
from legato_gateway.serving.prepared_request import CollectedChoice
from legato_protocol.wire.stream import TokenLogprobs, TopLogprob

TOP = tuple(TopLogprob(id, -id / 7) for id in range(20))


def writer(format: AnswerFormat | None = None) -> ResponseWriter:
    known = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m"}
    usual = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return ResponseWriter({**known, **usual}, True, lambda id: b" word%d" % id, format or AnswerFormat(), {})


def token(number: int) -> TokenText:
    text = f" word{number % 20}"
    return TokenText(number % 20, text, text.encode(), TokenLogprobs(-number / 7, TOP), 6 * number)


def test_those_of_all_deltas_are_in_what_ends_it():
    """Deltas of one token, of several, and of none."""
    made, kept = writer(), []
    made.keep = kept.append
    batches = [(token(0),), (), (token(1), token(2)), (token(3),)]
    said = b"".join([made.delta(0, Delta(0, "text", tokens)) for tokens in batches])
    found = read((said + made.delta(0, Delta(0, "", (), "stop")) + made.end(Usage())).decode())
    streamed = [one for event in found if event["type"].endswith("text.delta") for one in event["logprobs"]]
    assert [(one["logprob"], len(one["top_logprobs"])) for one in streamed] == [(-n / 7, 20) for n in range(4)]
    (done,) = (event for event in found if event["type"].endswith("text.done"))
    (part,) = (event["part"] for event in found if event["type"].endswith("part.done"))
    (item,) = found[-1]["response"]["output"]
    assert done["logprobs"] == part["logprobs"] == item["content"][0]["logprobs"] == streamed
    assert json.loads(encode(kept)) == [found[-1]["response"]]
    answer = CollectedChoice(0, ["text"] * 4, [one for tokens in batches for one in tokens], "stop")
    assert json.loads(writer().whole([answer], Usage()))["output"][0]["content"] == item["content"]


def test_a_stream_that_fails_has_those_so_far():
    made = writer()
    said = made.delta(0, Delta(0, "text", (token(0),))) + made.failed(WorkerFailed("gone"))
    *_, delta, failed = read(said.decode())
    assert failed["response"]["output"][0]["content"][0]["logprobs"] == delta["logprobs"] != []


REASONED, CALL = "<think>\nHm, é.\n</think>\n\n", '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
BOTH = AnswerFormat(CallFormat("Hermes", frozenset({"f"})), ReasoningFormat("Think", open_in_prompt=False))


def tokens_of(text: str, draw: random.Random, most: int) -> list[TokenText]:
    found, at = list[TokenText](), 0
    while at < len(text):
        piece = text[at : at + draw.randint(1, most)]
        found.append(TokenText(len(found), piece, piece.encode(), TokenLogprobs(-1.0, ()), at))
        at += len(piece)
    return found


def messages(output: list[Any]) -> list[tuple[str, str]]:
    """The text of each message, and that of the tokens which are told with it."""
    parts = [item["content"][0] for item in output if item["type"] == "message"]
    return [(part["text"], "".join(one["token"] for one in part["logprobs"])) for part in parts]


@pytest.mark.parametrize("most", [1, 9])
def test_those_of_messages_are_sent_whatever_else_is_in_an_answer(most):
    """Tokens of one character are exactly the text; longer ones hold it, and may begin before it or end behind it."""
    pieces = ["One. ", CALL, "\n", "Two < three", "<tool_call>", " no call", "<tool_call>[" + CALL[12:-13] + ", x", " "]
    draw, count = random.Random(most), 0
    for _ in range(times(40)):
        text = draw.choice([REASONED, ""]) + "".join(draw.choices(pieces, k=draw.randint(0, 6)))
        made, tokens = writer(BOTH), tokens_of(text, draw, most)
        said = b"".join([made.delta(0, Delta(0, token.text, (token,))) for token in tokens])
        found = read((said + made.delta(0, Delta(0, "", (), "stop")) + made.end(Usage())).decode())
        streamed = messages(found[-1]["response"]["output"])
        deltas = [event for event in found if event["type"].endswith("output_text.delta")]
        assert "".join(one["token"] for event in deltas for one in event["logprobs"]) == "".join(t for _, t in streamed)
        whole = json.loads(writer(BOTH).whole([CollectedChoice(0, [text], tokens, "stop")], Usage()))
        assert messages(whole["output"]) == streamed
        assert all(shown in of_tokens for shown, of_tokens in streamed), text
        assert all(len(of_tokens) <= len(shown) + 2 * (most - 1) for shown, of_tokens in streamed), text
        count += len(streamed)
    assert count > 20


@pytest.mark.parametrize(
    "deltas",
    [[("", [b"\xc3"]), ("é", [b"\xa9"]), ("!", [b"!"])], [("!", [b"", b"!"])]],
    ids=["several of one character", "one without text"],
)
def test_every_token_is_listed_with_the_text_that_it_belongs_to(deltas):
    made, kept = writer(BOTH), []
    made.keep = kept.append
    for text, raws in deltas:
        at = 1 if text == "!" and len(deltas) > 1 else 0
        tokens = [TokenText(1, raw.decode(errors="replace"), raw, TokenLogprobs(-1.0, ()), at) for raw in raws]
        made.delta(0, Delta(0, text, tuple(tokens), "stop" if text == "!" else None))
    made.end(Usage())
    (item,) = json.loads(encode(kept))[0]["output"]
    listed = [bytes(one["bytes"]) for one in item["content"][0]["logprobs"]]
    assert listed == [raw for _, raws in deltas for raw in raws]
