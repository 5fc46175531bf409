"""Sampling parameters of a sequence. `limits` has the allowed values."""

from legato_protocol.wire.messages import Value

# Kinds of grammars: a JSON schema, a regular expression, a JSON list of texts, rules of Lark or llama.cpp, or
# JSON of `reasoning.ReasoningBounds`.
JSON_SCHEMA, REGEX, CHOICE, RULES, REASONING = GRAMMAR_KINDS = ("json_schema", "regex", "choice", "rules", "reasoning")

# Fields of `SamplingParams` that a worker of release 0.1.0 would ignore.
LATER_PARAMS = ("allowed_token_ids", "bad_words", "prompt_logprobs")


class SamplingParams(Value, frozen=True):
    """Sampling parameters with OpenAI's defaults; `top_k=0`, `min_p=0` and `logprobs=None` mean off."""

    max_tokens: int
    seed: int  # 64 bit; drawn by the gateway if the user gave none
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None  # number of alternatives to the sampled token
    stop_token_ids: tuple[int, ...] = ()  # end of sequence included; the one that ends a sequence is delivered too
    min_tokens: int = 0  # stop tokens are not sampled before this many
    grammar: str = ""  # that the output must match; a worker of release 0.1.0 refuses any
    grammar_kind: str = JSON_SCHEMA  # one of `GRAMMAR_KINDS`, or a later version's
    allowed_token_ids: tuple[int, ...] = ()  # only these are sampled; empty: all are
    bad_words: tuple[tuple[int, ...], ...] = ()  # tokens of words: a word's last token is not sampled after its others
    prompt_logprobs: int | None = None  # number of alternatives to each prompt token: see `PromptLogprobs`


_PLAIN = SamplingParams(max_tokens=1, seed=0)


def later_params(params: SamplingParams) -> tuple[str, ...]:
    """Returns the fields of `LATER_PARAMS` that are not at their defaults."""
    return tuple([name for name in LATER_PARAMS if getattr(params, name) != getattr(_PLAIN, name)])
