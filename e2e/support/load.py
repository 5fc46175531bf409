"""Streams that go on while something is done to a service, compared with its undisturbed answers."""

import itertools
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import kube
from openai import OpenAI

PROMPTS = (
    "Tell me in a few sentences how rain comes about.",
    "Count from one to thirty in words.",
    "Write a short letter to a friend about a walk in the mountains.",
    "Explain to a child why the sky is blue.",
)
TOKENS = 24
# An end of its own would make a stream short, or empty: it would be past what is done to the service meanwhile.
ASK = {
    "max_tokens": TOKENS,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
    "extra_body": {"ignore_eos": True},
}


def completion(client: OpenAI, model: str, prompt: str) -> str:
    """Reads a stream of `TOKENS` tokens. Raises the client's errors, and ConnectionError for any other stream."""
    text, finish, tokens = "", None, 0
    seed = PROMPTS.index(prompt)  # the tokens of paced workers follow from it
    for chunk in client.completions.create(model=model, prompt=prompt, seed=seed, **ASK):
        for choice in chunk.choices:
            text += choice.text
            finish = choice.finish_reason or finish
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    if (finish, tokens) != ("length", TOKENS):
        raise ConnectionError(f"the stream ended by {finish} with {tokens} tokens, after {text!r}")
    return text


def answers(client: OpenAI, model: str) -> dict[str, str]:
    """Returns the answer to each prompt while nothing happens: different texts, none of them short."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = dict(zip(PROMPTS, pool.map(lambda prompt: completion(client, model, prompt), PROMPTS), strict=True))
    assert len({*found.values()}) == len(PROMPTS), found
    assert all(len(text) > TOKENS for text in found.values()), found
    return found


class Load:
    """`streams` clients that ask again and again for the expected answers, each until one goes wrong."""

    def __init__(self, client: OpenAI, model: str, expected: Mapping[str, str], streams: int = 4) -> None:
        self._client = client
        self._model = model
        self._expected = expected
        self._stop = threading.Event()
        self._prompts = itertools.cycle(PROMPTS)
        self._threads = [threading.Thread(target=self._read, daemon=True) for _ in range(streams)]
        self.failures: list[str] = []
        self.done = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        self.until_more(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(kube.PATIENCE)
            if thread.is_alive():
                self._note("a stream does not end")

    def until_more(self, streams: int) -> None:
        """Waits until that many more streams have ended well."""
        before = self.done
        kube.until(lambda: self.done >= before + streams or self.failures, f"{streams} more streams have ended")

    def _read(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                prompt = next(self._prompts)
            began = time.monotonic()
            try:
                text = completion(self._client, self._model, prompt)
            except Exception as error:  # every way to fail is one
                self._note(f"{prompt!r} after {time.monotonic() - began:.1f} s: {error!r}")
                return
            if text != self._expected[prompt]:
                self._note(f"{prompt!r}: {text!r} instead of {self._expected[prompt]!r}")
                return
            with self._lock:
                self.done += 1

    def _note(self, failure: str) -> None:
        with self._lock:
            self.failures.append(failure)
