"""One prefill and one decode worker: one dies at a stage of a request, and its reader does not notice.

The relay's random schedules (tests/gateway/relay/test_schedules.py) have workers die at every stage; here are those at
which real processes and their memory are concerned in different ways.
"""

import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

NUMBERS = "([0-9]{2}, ){60}[0-9]{2}"
TRIES = 10  # of streams that may end before their worker stops


def test_killing_a_worker_disturbs_no_stream(service: Any, undisturbed: list[Any], stopped: Callable[..., Any]) -> None:
    """While KV is written into its memory. Work of the dead worker waits for its successor."""
    round = stopped("decode", "pushing")
    round.signal(signal.SIGKILL)
    round.finish(undisturbed)
    service.until_connected(round.victim, not_epoch=round.epochs[round.victim])
    service.until_idle()


def _reason(service: Any, **options: Any) -> Any:
    """A chat that reasons for a while, and then answers with numbers."""
    reasons = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 150}
    return service.client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Which numbers are prime?"}],
        temperature=1.0,
        seed=11,
        max_tokens=500,
        extra_body=reasons | {"structured_outputs": {"regex": NUMBERS}},
        **options,
    )


@pytest.mark.usefixtures("reasoning")
def test_a_killed_worker_changes_no_answer_with_a_grammar_or_reasoning(service: Any) -> None:
    """The worker that goes on replays the sent tokens through the grammar and the reasoning."""
    ask: Any = {"max_tokens": 500, "temperature": 0.9, "seed": 11}
    ask["extra_body"] = {"structured_outputs": {"regex": NUMBERS}}
    whole, reasoned = service.stream("Some numbers:", **ask).result(), _reason(service).choices[0].message
    assert re.fullmatch(NUMBERS, whole)
    assert re.fullmatch(NUMBERS, reasoned.content)
    (worker,) = service.workers("decode")
    for _ in range(TRIES):
        chat, stream = _reason(service, stream=True), service.stream("Some numbers:", **ask)
        deltas = [choice.delta for _ in range(10) for choice in next(chat).choices]
        service.until(lambda stream=stream: stream.chunks > 3, "both are decoding", pause=0.002)
        if not stream.done.is_set():
            break
        chat.close()
    else:
        pytest.fail("the stream always ended before its worker could be killed")
    for process in service.processes(worker["worker"]):
        process.kill()
    deltas += [choice.delta for chunk in chat for choice in chunk.choices]
    assert stream.result() == whole
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == reasoned.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == reasoned.content
    service.until_connected(worker["worker"], not_epoch=worker["epoch"])
    service.until_idle()
