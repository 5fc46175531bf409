"""LoRA adapters on real workers, prefill and decode apart, for the official client. They come and go while the service
runs: its workers and gateway stay, and so do its streams."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import wordy_model

NAMES = ("red", "green", "blue")  # one more than have room in memory
STORY = " ".join(f"Chapter {i}: the fox counted {i * 37 % 101} stones." for i in range(12))
STORY += " Then, quite alone, it went to"
PROMPT = "The lighthouse keeper wrote in the log: " + " ".join(f"day {i}, wind {i * 37 % 11}." for i in range(20))


class Adapted:
    """The shared service, with other adapters than `red` in its manifest."""

    def __init__(self, service: Any) -> None:
        self.service, self.folder = service, service.file.parent / "adapters"
        for seed, name in enumerate(NAMES[1:], 1):
            wordy_model.write_adapter(self.folder / name, seed)
        self._now = f"adapters: {json.dumps(self._entries('red'))}"
        self.edit(*NAMES)

    def _entries(self, *names: str) -> list[dict[str, Any]]:
        return [{"name": name, "source": {"path": str(self.folder / name)}} for name in names]

    def edit(self, *names: str) -> None:
        before = self._now
        self._now = f"adapters: {json.dumps(self._entries(*names))}"
        self.service.edit((before, self._now))

    def serve(self, *names: str) -> None:
        """Edits the manifest, and returns once these adapters are models."""
        self.edit(*names)
        self.until_models(*names)

    def models(self) -> list[str]:
        return [model.id for model in self.service.client.models.list()]

    def until_models(self, *names: str) -> None:
        self.service.until(lambda: self.models() == ["smollm2", *names], lambda: f"the models are {names}")

    def stream(self, model: str, tokens: int, prompt: str = PROMPT) -> Any:
        return self.service.client.completions.create(
            model=model, prompt=prompt, max_tokens=tokens, temperature=0, stream=True
        )

    def said(self, model: str, tokens: int = 16, prompt: str = PROMPT) -> str:
        answer = self.service.client.completions.create(model=model, prompt=prompt, max_tokens=tokens, temperature=0)
        assert answer.model == model
        return str(answer.choices[0].text)

    def epochs(self) -> dict[str, str]:
        return {worker["worker"]: worker["epoch"] for worker in self.service.workers()}


@pytest.fixture(scope="module")
def adapted(shared: Any) -> Iterator[Adapted]:
    made = Adapted(shared.get())
    made.until_models(*NAMES)
    yield made
    made.serve("red")


def test_they_are_added_and_removed_under_streams(adapted: Adapted) -> None:
    """No stream fails or changes, and no process is another one than before."""
    service, epochs = adapted.service, adapted.epochs()
    adapted.serve("red")
    expected = {model: adapted.said(model, 48) for model in ("smollm2", "red")}
    assert expected["smollm2"] != expected["red"]
    enough, counts, wrong = threading.Event(), {"smollm2": 0, "red": 0}, []

    def ask(model: str) -> None:
        while not enough.is_set():
            try:
                text = "".join(chunk.choices[0].text for chunk in adapted.stream(model, 48) if chunk.choices)
            except openai.OpenAIError as error:
                text = str(error)
            counts[model] += 1
            if text != expected[model]:
                wrong.append((model, text))

    with ThreadPoolExecutor(len(counts)) as pool:
        pool.map(ask, counts)
        try:
            for _ in range(2):
                before = dict(counts)
                adapted.serve("red", "green")
                assert adapted.said("green", 48) not in expected.values()
                adapted.serve("red")
                with pytest.raises(openai.NotFoundError, match="'green' does not exist; 'smollm2', 'red' do"):
                    adapted.said("green")
                service.until(lambda before=before: all(counts[m] > before[m] for m in counts), "streams go on")
        finally:
            enough.set()
    assert not wrong
    assert adapted.epochs() == epochs, "nothing was restarted"
