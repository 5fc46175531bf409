"""What a model's makers set counts where a request says nothing, and only there."""

from legato_gateway.generation_config import GenerationDefaults
from legato_protocol.sampling_params import SamplingParams

DEFAULTS = GenerationDefaults(0.7, 0.8, 20, 0.05, 1.05, 50)
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling(gateway) -> SamplingParams:
    return gateway.relay.requests[-1].params


def said(gateway) -> tuple[float, ...]:
    return tuple(getattr(sampling(gateway), field) for field in FIELDS)


async def test_what_a_request_says_counts_even_where_it_is_neutral_and_null_says_nothing(make):
    gateway = make(defaults=DEFAULTS)
    await gateway.chat(**dict.fromkeys(FIELDS))
    assert said(gateway) == (0.7, 0.8, 20, 0.05, 1.05)
    neutral = {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
    await gateway.chat(**neutral)
    assert said(gateway) == (0, 1, 0, 0, 1)
    await gateway.chat(top_k=0)
    assert said(gateway) == (0.7, 0.8, 0, 0.05, 1.05)


async def test_without_makers_values_the_neutral_ones_count(make):
    gateway = make()
    await gateway.chat()
    assert said(gateway) == (1, 1, 0, 0, 1)


async def test_chats_end_at_the_makers_length_and_completions_at_openai_s(make):
    gateway = make(defaults=DEFAULTS)
    for fields, length in (({}, 50), ({"max_tokens": None}, 50), ({"max_tokens": 70}, 70)):
        await gateway.chat(**fields)
        assert sampling(gateway).max_tokens == length
    await gateway.complete()
    assert sampling(gateway).max_tokens == 16


async def test_a_makers_length_beyond_the_context_is_cut_to_it(make):
    gateway = make(defaults=GenerationDefaults(max_tokens=100_000))
    assert (await gateway.chat()).status_code == 200
    assert sampling(gateway).max_tokens == 1000 - len(gateway.relay.requests[-1].prompt)


async def test_the_model_shows_them(make):
    for gateway, shown in ((make(defaults=DEFAULTS), DEFAULTS.given()), (make(), {})):
        (listed,) = (await gateway.http.get("/v1/models")).json()["data"]
        assert listed["default_sampling_params"] == shown
        assert (await gateway.http.get("/v1/models/tiny")).json() == listed
    assert (await make(defaults=DEFAULTS).client.models.list()).data[0].id == "tiny"
