"""Random schemas at real workers, one of which is killed meanwhile: every answer that ends by itself is valid.

`benchmarks/structured_random.py` does that with 500 of them, and more disturbances.
"""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
import random_schemas

COUNT = 12
MOST = 200  # tokens


@pytest.fixture(scope="module")
def service(shared_service: Callable[..., Any]) -> Any:
    return shared_service(chunk=64)


def test_every_answer_that_ends_is_valid_although_the_decode_worker_dies(service: Any) -> None:
    schemas = [_several(schema) for schema in random_schemas.supported(COUNT, seed=7)]
    (worker,) = service.workers("decode")
    seen = {record["id"] for record in service.state()["requests"]}
    streams = [
        service.stream(
            f"JSON of the schema {json.dumps(schema)[:400]}:\n",
            max_tokens=MOST,
            temperature=(0.0, 0.8)[seed % 2],
            seed=seed,
            extra_body={"structured_outputs": {"json": schema}},
        )
        for seed, schema in enumerate(schemas)
    ]
    service.until(lambda: len(_under_way(streams)) >= 3 or all(s.done.is_set() for s in streams), "some are written")
    assert len(_under_way(streams)) >= 3, "the answers are too short"
    service.processes(worker["worker"])[-1].send_signal(signal.SIGKILL)
    answers = [stream.result() for stream in streams]
    whole = [(schema, text) for schema, text, s in zip(schemas, answers, streams, strict=True) if s.finish == "stop"]
    for schema, text in whole:
        random_schemas.check(schema, text)
    assert len(whole) >= COUNT // 3
    assert {stream.finish for stream in streams} <= {"stop", "length"}
    service.until_connected(worker["worker"], not_epoch=worker["epoch"])
    service.until_idle()
    attempts = [record["attempt"] for record in service.state()["requests"] if record["id"] not in seen]
    assert len(attempts) == COUNT
    assert sum(attempt > 1 for attempt in attempts) >= 3, "answers that others went on with"


def _under_way(streams: list[Any]) -> list[Any]:
    return [stream for stream in streams if stream.chunks >= 3 and not stream.done.is_set()]


def _several(schema: dict[str, Any]) -> dict[str, Any]:
    """A list of what matches it: answers are long enough to be interrupted."""
    item = {key: value for key, value in schema.items() if key != "$defs"}
    return {"type": "array", "items": item, "minItems": 6, "maxItems": 8, "$defs": schema["$defs"]}
