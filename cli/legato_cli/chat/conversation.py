"""One conversation with a model: its history, and streamed answers from a gateway's control port."""

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import aiohttp

from legato_cli.ui.target import TargetSource, UITarget

PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=5.0)  # the gateway ends a request by its deadline
MAX_EVENT = 1 << 22  # bytes of a line of the stream
_DONE = "[DONE]"


class NoReply(Exception):
    """The service did not answer the question completely. The text has the reason."""


class ChatConversation:
    """The messages so far. A question without any answer is forgotten, so that it can be asked again."""

    def __init__(
        self,
        targets: TargetSource,
        session: aiohttp.ClientSession,
        parameters: Mapping[str, object],
        system: str | None,
    ) -> None:
        self._targets = targets
        self._session = session
        self._parameters = parameters
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []

    async def ask(self, question: str) -> AsyncGenerator[str, None]:
        """Yields the answer's pieces. They stay in the history even if the answer is stopped.

        Raises NoReply and ServiceUnavailable.
        """
        self.messages.append({"role": "user", "content": question})
        said: list[str] = []
        try:
            async with contextlib.aclosing(self._stream()) as pieces:
                async for piece in pieces:
                    said.append(piece)
                    yield piece
        finally:
            if said:
                self.messages.append({"role": "assistant", "content": "".join(said)})
            else:
                self.messages.pop()

    async def _stream(self) -> AsyncGenerator[str, None]:
        target = await self._targets.find()
        if not target.gateways:
            raise NoReply("no gateway of this service is ready")
        body = {"model": await self._model(target), "messages": self.messages, "stream": True, **self._parameters}
        try:
            async with self._request("POST", target, "chat/completions", body) as response:
                if response.status != 200:
                    raise NoReply(_error_message(await response.text()) or f"the gateway answers {response.status}")
                async for event in _events(response):
                    for choice in event.get("choices", ()):
                        if piece := choice.get("delta", {}).get("content"):
                            yield piece
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise NoReply(f"the connection to the gateway broke off: {str(error) or type(error).__name__}") from None

    async def _model(self, target: UITarget) -> str:
        """Asks for the model's name each time, because an edit of the manifest may have renamed it."""
        try:
            async with self._request("GET", target, "models") as response:
                response.raise_for_status()
                return str((await response.json())["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError) as error:
            raise NoReply(f"the gateway does not report its model: {str(error) or type(error).__name__}") from None

    def _request(
        self, method: str, target: UITarget, path: str, body: object = None
    ) -> "aiohttp.client._RequestContextManager":
        """Sends a request to the first gateway with the service's own token instead of an API key."""
        gateway, headers = target.gateways[0], {"authorization": f"Bearer {target.token}"}
        url = f"{gateway.url}/v1/{path}"
        return self._session.request(method, url, json=body, headers=headers, timeout=PATIENCE, **gateway.trust)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yields events until the stream is complete. Raises NoReply for an error in it, or an early end."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip().decode()
        if data == _DONE:
            return
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise NoReply(_error_message(data))
        yield event
    raise NoReply("the answer broke off")


def _error_message(body: str) -> str:
    """Returns the message of an error in OpenAI's format."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body.strip()[:500]
