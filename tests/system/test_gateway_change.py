"""A gateway setting is changed under load: no stream and no new request notices."""

import threading
from collections.abc import Callable
from typing import Any

import openai

TOKENS = 24  # of a stream


class User(threading.Thread):
    """Asks for one completion after the other, until it is stopped or one fails."""

    def __init__(self, service: Any, ask: Callable[[Any], None]) -> None:
        super().__init__(daemon=True)
        self.answered = 0
        self.failure = ""
        self._service = service
        self._ask = ask
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._ask(self._service)
            except (openai.OpenAIError, AssertionError) as error:
                self.failure = f"{error!r} because of {error.__cause__!r}"
                return
            self.answered += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _stream(service: Any) -> None:
    """Every token once: their logprobs are counted."""
    stream = service.stream("A story:", TOKENS, temperature=0, logprobs=1, extra_body={"ignore_eos": True})
    stream.result()
    assert (stream.finish, len(stream.logprobs)) == ("length", TOKENS)


def _answer(service: Any, **headers: str) -> None:
    found = service.client.completions.create(
        model="smollm2", prompt="One, two,", max_tokens=2, temperature=0, extra_headers=headers
    )
    assert found.choices[0].finish_reason == "length"


def _answer_on_a_new_connection(service: Any) -> None:
    _answer(service, connection="close")


def test_a_changed_gateway_setting_fails_nothing(service: Any) -> None:
    users = [User(service, ask) for ask in (_stream, _stream, _stream, _answer, _answer_on_a_new_connection)]
    for user in users:
        user.start()
    service.until(lambda: all(user.answered for user in users), "all are served")
    service.edit_gateway(("defaultDeadline: 2m", "defaultDeadline: 3m"))
    answered = [user.answered for user in users]
    service.until(
        lambda: any(u.failure for u in users) or all(u.answered > n for u, n in zip(users, answered, strict=True)),
        "the second gateway serves all of them",
    )
    for user in users:
        user.stop()
    assert [user.failure for user in users] == [""] * len(users)
    service.edit_gateway(("defaultDeadline: 3m", "defaultDeadline: 2m"))
    service.until_idle()
