"""Promises that all generating APIs make, whatever each names its fields."""

import json
import pickle
from concurrent.futures import Executor, Future
from ipaddress import ip_network
from itertools import product
from typing import Any

import openai
import pytest
from generation_apis import ALL, CHAT, COMPLETIONS, EXPLAINING, MESSAGES, RESPONSES, SPEAKING

from legato_gateway.clients.identify import Clients
from legato_gateway.errors import DeadlineExceeded, GatewayError, Overloaded, QuotaExceeded, WorkerFailed
from legato_gateway.generation_config import GenerationDefaults
from legato_gateway.request import Delta, TokenText
from legato_gateway.serving.bodies.preparation import LONG
from legato_protocol.wire.stream import TokenLogprobs

EACH = pytest.mark.parametrize("api", ALL, ids=str)
SPEAKS = pytest.mark.parametrize("api", SPEAKING, ids=str)
EXPLAINS = pytest.mark.parametrize("api", EXPLAINING, ids=str)
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@BOTH
@EACH
async def test_an_answer_its_end_its_usage_and_whose_it_is(gateway, api, stream):
    said = await api.ask(gateway, stream)
    assert (said.text, said.finish, said.model) == ("Paris é!", "stop", "tiny")
    assert said.usage == (len(api.prompt), 4, 3)
    assert said.id.startswith(api.prefix)
    assert gateway.entries[-1].id == said.id
    (request,) = gateway.relay.requests
    assert bytes(request.prompt).decode() == api.prompt
    assert request.params.logprobs is None, "nobody asked for them"


@BOTH
@EACH
async def test_an_answer_that_is_cut_off_says_so_and_one_may_be_empty(gateway, api, stream):
    gateway.script(Delta(0, "Par"), Delta(0, "is", (), "length"))
    said = await api.ask(gateway, stream, **api.meant("most", 2))
    assert (said.text, said.finish) == ("Paris", "length")
    assert gateway.relay.requests[0].params.max_tokens == 2
    gateway.script(Delta(0, "", (), "stop"))
    said = await api.ask(gateway, stream)
    assert (said.text, said.finish) == ("", "stop")


@BOTH
@EACH
async def test_an_answer_that_its_deadline_cuts_off_has_what_there_is(gateway, api, stream):
    """The answer is not reported as a full context, which would make agents compact."""
    gateway.script(Delta(0, "Par"), Delta(0, "is", finish="length", late=True))
    fields = api.meant("most", 5000) if api is MESSAGES else api.meant("usage", True) if stream else {}
    answer = await api.post(gateway, stream=stream, **fields)
    read = api.streamed(answer.text) if stream else api.whole(answer.json())
    assert (read.text, read.finish) == ("Paris", "length")
    assert ('"stop_reason":"deadline"' in answer.text) == (api in (CHAT, COMPLETIONS))


@EACH
async def test_no_answer_is_longer_than_service_and_tenant_allow(make, api):
    clients = Clients(proxies=[ip_network("127.0.0.0/8")], max_output={"small": 3, "large": 50})
    gateway = make(max_output=8, clients=clients)
    for tenant, most in (("other", 8), ("small", 3), ("large", 8)):
        for asked in ({}, api.meant("most", 500), api.meant("most", 2)):
            assert (await api.post(gateway, {"x-legato-tenant": tenant}, **asked)).is_success
        made = [request.params.max_tokens for request in gateway.relay.requests[-3:]]
        assert made[1:] == [most, 2]
        assert made[0] <= most, "messages always say how long they may be"


@EACH
async def test_sampling_and_stop_strings_reach_the_model(gateway, api):
    assert (await api.post(gateway, temperature=0.5, top_p=0.9, top_k=7, **api.meant("stop", ["x", "yy"]))).is_success
    (request,) = gateway.relay.requests
    assert (request.params.temperature, request.params.top_p, request.params.top_k) == (0.5, 0.9, 7)
    assert request.stop == (("x", "yy") if "stop" in api.fields else ())


@EACH
async def test_headers_say_who_asks_how_urgently_and_for_how_long(gateway, api):
    asked = {"tenant": "team", "priority": "-2", "deadline": "2m", "explain": "true"}
    for stream in (False, True):
        answer = await api.post(gateway, {f"x-legato-{name}": value for name, value in asked.items()}, stream=stream)
        route = json.loads(answer.headers["x-legato-route"])
        cached = {"prefill-0": 16}
        assert (route["prefill"], route["decode"], route["cached_tokens"]) == ("prefill-0", "decode-0", cached)
    assert "x-legato-route" not in (await api.post(gateway)).headers
    request, _, plain = gateway.relay.requests
    assert (request.tenant, request.priority, request.deadline) == ("team", -2, 120)
    assert (plain.tenant, plain.priority, plain.patience) == ("address 127.0.0.1", 0, 600)


DEFAULTS = GenerationDefaults(0.7, 0.8, 20, 0.05, 1.05)


@EACH
async def test_what_the_models_makers_set_counts_where_nothing_is_said(make, api):
    gateway = make(defaults=DEFAULTS)
    for fields in ({}, {"temperature": 0.0}):
        assert (await api.post(gateway, **fields)).is_success
    first, second = (request.params for request in gateway.relay.requests)
    sampling = (first.temperature, first.top_p, first.top_k, first.min_p, first.repetition_penalty)
    assert sampling == (0.7, 0.8, 20, 0.05, 1.05)
    assert (second.temperature, second.top_p) == (0, 0.8)


@EACH
async def test_adapters_are_models_of_their_own(make, api):
    gateway = make(adapters=lambda: ("sql", "team/law"))
    for name in ("tiny", "sql", "team/law"):
        assert [(await api.ask(gateway, stream, model=name)).model for stream in (False, True)] == [name] * 2
        assert {gateway.relay.requests[-1].model, gateway.entries[-1].model} == {name}


async def test_adapters_are_listed_with_the_model_that_they_adapt_and_others_are_not_found(make):
    gateway = make(adapters=lambda: ("sql", "team/law"))
    listed = (await gateway.http.get("/v1/models")).json()["data"]
    shown = [("tiny", "tiny", None), ("sql", "tiny", "tiny"), ("team/law", "tiny", "tiny")]
    assert [(model["id"], model["root"], model["parent"]) for model in listed] == shown
    assert {(model["object"], model["created"], model["owned_by"]) for model in listed} == {("model", 7, "legato")}
    assert (await gateway.client.models.retrieve("team/law")).id == "team/law"
    with pytest.raises(openai.NotFoundError, match="'chess' does not exist; 'tiny', 'sql', 'team/law' do") as caught:
        await gateway.client.models.retrieve("chess")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert (await gateway.http.post("/v1/completions", json={"prompt": "hi"})).json()["model"] == "tiny"
    assert gateway.relay.requests[-1].model == ""


@SPEAKS
async def test_an_answer_can_be_made_to_match_a_schema(gateway, api):
    await api.ask(gateway, **api.meant("schema", CITY))
    assert json.loads(gateway.relay.requests[0].params.grammar) == CITY


@BOTH
@EXPLAINS
async def test_log_probabilities_come_where_they_are_asked_for(gateway, api, stream):
    for top in (2, 0):
        said = await api.ask(gateway, stream, **api.meant("logprobs", top))
        assert said.tokens == [("P", -0.5), (" ", -0.5), ("!", -0.5)]
        assert gateway.relay.requests[-1].params.logprobs == top


ERRORS = [
    (DeadlineExceeded("too late", part="prefill"), 504, {}),
    (QuotaExceeded("used up", reason="tenant_quota", retry_after=2.2), 429, {"retry-after": "3"}),
    (Overloaded("full", reason="queue_full", retry_after=0), 503, {"x-legato-drop-reason": "queue_full"}),
    (WorkerFailed("gone", part="decode"), 502, {}),
    (RuntimeError("secret"), 500, {}),
]


@EACH
async def test_what_fails_before_the_first_token_has_a_status(gateway, api):
    """A fault of ours is an error that says nothing of it."""
    for stream, (error, status, headers) in product((False, True), ERRORS):
        gateway.script(error)
        answer = await api.post(gateway, stream=stream)
        assert answer.status_code == status
        assert api.error(answer)[1].startswith(str(error)) == isinstance(error, GatewayError)
        known = getattr(error, "code", "internal_error"), getattr(error, "part", "gateway")
        said = answer.json()["error"]
        assert api is MESSAGES or (said["code"], said.get("part")) == known
        assert headers.items() <= dict(answer.headers).items()
        assert "secret" not in answer.text


@EACH
async def test_what_fails_later_ends_the_stream_with_an_error(gateway, api):
    gateway.script(Delta(0, "Par"), WorkerFailed("gone", part="decode"))
    answer = await api.post(gateway, stream=True)
    said = api.streamed(answer.text)
    assert (said.text, said.error.partition(" ")[0]) == ("Par", "gone")
    assert "decode" in answer.text, "the part that failed"
    assert "[DONE]" not in answer.text


USER = b'{"model": "tiny", "messages": [{"role": "user", "content": "hi"}]'
MALFORMED = [
    *(b"", b"{", b"[]", b"null", b'{"model": NaN}', b'{"model": "\xc3"}', b'\xff\xfe{"model"'),
    b'{"model": "tiny", "messages": [',
    *(b"[" * 100_000, b'{"model": "tiny", "messages": ' + b"[" * 100_000, b'{"a":' * 100_000),
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
    USER + b', "stop": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"model": "tiny", "messages": ' + b"[" * 900 + b"]" * 900 + b"}",
    *(USER + b"} {}", b"{}", b'{"model": "tiny"}'),
]


@EACH
async def test_malformed_and_empty_bodies_are_refused_in_its_shape(gateway, api):
    for body in MALFORMED:
        answer = await gateway.http.post(f"/v1/{api.name}", content=body)
        assert answer.status_code == 400, body[:40]
        assert api.error(answer)
    assert api.error(answer)[1] == f"{api.needs} is missing"
    assert gateway.relay.generations == []


@EACH
async def test_what_cannot_be_obeyed_is_refused_by_name(gateway, api):
    most = next(iter(api.meant("most", 1)))
    for name, value in (("temperature", 3), ("top_p", "much"), (most, -1), (api.needs, 5), ("mirostat", 1)):
        answer = await api.post(gateway, **{name: value})
        assert answer.status_code == 400, answer.text
        assert api.names(answer, name), answer.text
    unknown = await api.post(gateway, model="gpt-9")
    assert (unknown.status_code, api.names(unknown, "model")) == (404, True)
    assert gateway.relay.generations == []


@EACH
async def test_a_prompt_beyond_the_context_is_told_with_numbers(gateway, api):
    """One that no context could hold is not even tokenized."""
    for text in ("x" * 1200, "x" * 5000):
        answer = await api.post(gateway, **api.meant("long", text))
        assert answer.status_code == 400
        assert "1000 tokens" in api.error(answer)[1]
    assert gateway.relay.generations == []


@EACH
async def test_bodies_of_other_types_large_ones_and_floods_of_headers_are_refused(gateway, api):
    path = f"/v1/{api.name}"
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonl"):
        assert (await gateway.http.post(path, content=b"{}", headers={"content-type": kind})).status_code == 415
    for headers in ({f"x-{number}": "y" for number in range(500)}, {"x-long": "y" * 100_000}):
        assert (await api.post(gateway, headers)).status_code == 431
    answer = await gateway.http.post(path, content=b"x" * (10 << 20))
    assert answer.status_code == 413
    assert api.error(answer)
    assert gateway.relay.generations == []


CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "get_weather", "parameters": CITY}
NOW: Any = {"name": "now"}
FIRST = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
CALLS = f'A moment.\n{FIRST}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>'
CALLED = [("get_weather", '{"city": "Köln"}'), ("now", "{}")]


@pytest.fixture
def calling(make: Any) -> Any:
    return make(template="{{ tools }} <tool_call>")


@pytest.mark.parametrize("size", [1, 1000])
@BOTH
@SPEAKS
async def test_calls_come_back_in_addition_to_text(calling, api, stream, size):
    calling.say(CALLS, size=size)
    said = await api.ask(calling, stream, **api.meant("tools", [WEATHER, NOW]))
    assert (said.text, said.calls, said.finish) == ("A moment.", CALLED, "calls")
    calling.say(FIRST, size=size)
    said = await api.ask(calling, stream, **api.meant("tools", [WEATHER]))
    assert (said.text, said.calls, said.finish) == ("", CALLED[:1], "calls")


@BOTH
@SPEAKS
async def test_only_the_first_call_is_told_where_calls_are_not_parallel(calling, api, stream):
    calling.say(CALLS)
    said = await api.ask(calling, stream, **api.meant("tools", [WEATHER, NOW]), **api.meant("one call", True))
    assert (said.calls, said.finish) == (CALLED[:1], "calls")


@BOTH
@SPEAKS
async def test_a_call_that_was_cut_off_says_so_and_an_answer_needs_none(calling, api, stream):
    calling.say(FIRST[:60], "length")
    said = await api.ask(calling, stream, **api.meant("tools", [WEATHER]))
    ((name, _),) = said.calls
    assert (name, said.finish) == ("get_weather", "length")
    calling.say("Paris. \n")
    said = await api.ask(calling, stream, **api.meant("tools", [WEATHER]))
    assert (said.text, said.calls, said.finish) == ("Paris. \n", [], "stop")


class PicklingExecutor(Executor):
    """Pickles what a process for a large body would receive and send, in this process."""

    def submit(self, call: Any, /, *args: Any, **_: Any) -> Future[Any]:
        call, args = pickle.loads(pickle.dumps((call, args)))
        future: Future[Any] = Future()
        future.set_result(pickle.loads(pickle.dumps(call(*args))))
        return future


@BOTH
@SPEAKS
async def test_calls_answer_a_large_body(make, api, stream):
    gateway = make(template="<tool_call>{% if enable_thinking %}<think>", processes=(PicklingExecutor(),))
    gateway.tokens.before = len  # anything that can be pickled
    gateway.say(CALLS)
    body = {"model": "tiny", "stream": stream, **api.body, **api.meant("tools", [WEATHER, NOW])}
    body |= api.meant("usage", True) if stream else {}
    answer = await gateway.http.post(f"/v1/{api.name}", content=json.dumps(body) + " " * LONG)
    said = api.streamed(answer.text) if stream else api.whole(answer.json())
    assert (said.text, said.calls, said.finish) == ("A moment.", CALLED, "calls")


@pytest.mark.parametrize("choice", ["auto", "required", "get_weather", "none"])
@SPEAKS
async def test_a_choice_of_tools_is_obeyed(calling, api, choice):
    """The prompt lists them, and a grammar enforces the choice; with none, no tool is listed."""
    calling.say(FIRST)
    said = await api.ask(calling, **api.meant("tools", [WEATHER, NOW]), **api.meant("choice", choice))
    (request,) = calling.relay.requests
    shown = [tool["function"]["name"] for tool in calling.tokens.given.get("tools", ())]
    assert shown == ([] if choice == "none" else ["get_weather", "now"])
    assert ("get_weather" in request.params.grammar) == (choice in ("required", "get_weather"))
    assert ("now" in request.params.grammar) == (choice == "required")
    assert (said.text, said.calls) == ((FIRST, []) if choice == "none" else ("", CALLED[:1]))


@pytest.mark.parametrize(
    ("tools", "choice"), [([NOW, NOW], "auto"), ([{"name": "a b"}], "auto"), ([NOW], "then"), ([NOW], "")]
)
@SPEAKS
async def test_tools_and_choices_that_make_no_sense_are_refused(calling, api, tools, choice):
    answer = await api.post(calling, **api.meant("tools", tools), **api.meant("choice", choice))
    assert answer.status_code == 400, answer.text
    assert "tool" in (api.error(answer)[0] or api.error(answer)[1])
    assert calling.relay.generations == []


THOUGHT = "<think>\nLet me see: é.\n</think>\n\nParis. \n"
BEHIND = f"<think>\nI could write <tool_call>.\n</think>\n\n{FIRST}"


@pytest.fixture
def reasoning(make: Any) -> Any:
    """Each answer is said to have had five tokens of reasoning."""
    gateway = make(template="{{ tools }}<tool_call>{% if enable_thinking %}<think>{{ enable_thinking }}")
    submit = gateway.relay.submit

    def counting(request: Any) -> Any:
        generation = submit(request)
        generation.usage.reasoning_tokens = 5
        return generation

    gateway.relay.submit = counting
    return gateway


@pytest.mark.parametrize("size", [1, 1000])
@BOTH
@SPEAKS
async def test_reasoning_is_separate_from_the_text_and_counted(reasoning, api, stream, size):
    reasoning.say(THOUGHT, size=size)
    said = await api.ask(reasoning, stream)
    assert (said.reasoning, said.text, said.finish) == ("Let me see: é.", "Paris. \n", "stop")
    assert said.reasoning_tokens == (None if api is MESSAGES else 5)


@BOTH
@SPEAKS
async def test_an_answer_may_end_within_reasoning_or_have_none(reasoning, api, stream):
    reasoning.say(THOUGHT[:15], "length")
    said = await api.ask(reasoning, stream)
    assert (said.reasoning, said.text, said.finish) == ("Let me", "", "length")
    reasoning.say("Paris.")
    said = await api.ask(reasoning, stream)
    assert (said.reasoning, said.text) == ("", "Paris.")


@BOTH
@SPEAKS
async def test_calls_are_read_behind_reasoning_only(reasoning, api, stream):
    reasoning.say(BEHIND)
    said = await api.ask(reasoning, stream, **api.meant("tools", [WEATHER]))
    assert (said.reasoning, said.text, said.calls) == ("I could write <tool_call>.", "", CALLED[:1])
    assert said.finish == "calls"


@BOTH
@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=str)
async def test_log_probabilities_are_of_text_wherever_reasoning_and_calls_are(reasoning, api, stream):
    """A chat also lists the tokens of reasoning and calls: it has no other place for them."""
    text = THOUGHT + FIRST
    tokens = [TokenText(0, char, char.encode(), TokenLogprobs(-1.0, ()), at) for at, char in enumerate(text)]
    reasoning.script(*(Delta(0, token.text, (token,)) for token in tokens), Delta(0, "", (), "stop"))
    said = await api.ask(reasoning, stream, **api.meant("logprobs", 0), **api.meant("tools", [WEATHER]))
    explained = "".join(token for token, _ in said.tokens)
    assert explained == text if api is CHAT else explained.strip() == "Paris."
