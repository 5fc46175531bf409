"""A gateway's HTTP over its relay and scripted workers: what clients read of tokens that a test chooses."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from legato_gateway.http import app as application
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.model_serving import ModelServing, ServedModel
from legato_gateway.testing.fake_worker import FakeWorker
from legato_gateway.tokenizer.files import TokenizerFiles
from legato_gateway.tokenizer.tokens import ModelTokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|mark|>")


def tokenizer(template: str = TEMPLATE, first: str = "") -> ModelTokenizer:
    """A token for each byte, and the special ones; `<|im_end|>` ends an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: id for id, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    if first:
        known = [(first, made.token_to_id(first))]
        made.post_processor = processors.TemplateProcessing(single=f"{first} $A", special_tokens=known)
    end = made.token_to_id("<|im_end|>")
    return ModelTokenizer(TokenizerFiles(made, template, None, {"bos_token": "", "eos_token": "<|im_end|>"}, (end,)))


@dataclass
class Answer:
    """One answer, streamed or not, with the fields of its choices put together."""

    texts: dict[int, str]
    finishes: dict[int, str]
    stops: dict[int, str | int | None]  # stop_reason
    token_ids: dict[int, list[int]]
    prompts: list[list[int]]  # in the order in which they were told
    usages: list[tuple[int | None, dict[str, int]]]  # (choice, or None at the end, usage)
    logprobs: list[dict[str, Any]]
    chunks: list[dict[str, Any]]


@dataclass
class Served:
    """The application, its workers and its tokens."""

    tokens: ModelTokenizer
    workers: list[FakeWorker]
    http: httpx.AsyncClient
    gateway: Any

    async def ask(self, path: str, stream: bool = False, **fields: Any) -> Answer:
        about = {"prompt": "hi"} if path == "completions" else {"messages": [{"role": "user", "content": "hi"}]}
        response = await self.http.post(f"/v1/{path}", json={"max_tokens": 100, "stream": stream, **about, **fields})
        assert response.status_code == 200, response.text
        if not stream:
            return collected([response.json()])
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        return collected([json.loads(line) for line in lines])


def collected(chunks: Sequence[Mapping[str, Any]]) -> Answer:
    answer = Answer({}, {}, {}, {}, [], [], [], [dict(chunk) for chunk in chunks])
    for chunk in chunks:
        if "prompt_token_ids" in chunk:
            answer.prompts.append(chunk["prompt_token_ids"])
        if usage := chunk.get("usage"):
            answer.usages.append((chunk["choices"][0]["index"] if chunk["choices"] else None, usage))
        for choice in chunk["choices"]:
            index = choice["index"]
            said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            answer.texts[index] = answer.texts.get(index, "") + (said.get("content") or "")
            answer.token_ids.setdefault(index, []).extend(choice.get("token_ids") or ())
            if "prompt_token_ids" in choice:
                answer.prompts.append(choice["prompt_token_ids"])
            if choice.get("logprobs"):
                answer.logprobs.append(choice["logprobs"])
            if choice["finish_reason"]:
                answer.finishes[index] = choice["finish_reason"]
                answer.stops[index] = choice["stop_reason"]
    return answer


def saying(tokens: ModelTokenizer, *texts: str) -> Callable[[int, int, int], int]:
    """Workers say these texts, a token for each byte, by choice; behind each comes the end."""
    scripts = [[*tokens.encode(text), *tokens.eos_ids] for text in texts]
    return lambda seed, choice, index: scripts[choice % len(scripts)][index]


@contextlib.asynccontextmanager
async def served(
    lab: Any, *texts: str, template: str = TEMPLATE, workers: int = 1, first: str = ""
) -> AsyncIterator[Served]:
    """Workers u0… that say `texts`. The model expects a special token `first` before a prompt."""
    tokens = tokenizer(template, first)
    made = lab.unified(workers, tokens=saying(tokens, *texts))
    async with lab.running(made, vocabulary=tokens) as gateway:
        serving = ServingContext(ModelServing.of_model(tokens, ServedModel("tiny", 1000)), gateway.relay)
        app = application.create(application.Parts(serving, gateway.state))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            yield Served(tokens, made, http, gateway)
