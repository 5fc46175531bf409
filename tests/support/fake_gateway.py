"""A control port as `legato chat`, `legato ui` and `legato state` ask it: for the token "secret", and in a script."""

import asyncio
import json

from aiohttp import web


class FakeGateway:
    """Repeats the last question, word by word.

    After `slow` it waits until the client is gone; `fail` is an error in the stream, after `break` the stream ends, and
    after `abort` its connection.
    """

    def __init__(self, name="g0", token="secret"):
        self.name, self._authorization = name, f"Bearer {token}"
        self.asked, self.bodies = [], []  # paths and tokens shown; questions
        self.begun, self.gone = asyncio.Event(), asyncio.Event()

    async def answer(self, request):
        self.asked.append((request.path_qs, shown := request.headers.get("authorization", "")))
        if request.path == "/ui":
            return web.Response(text="page", headers={"content-security-policy": "default-src 'none'", "x-own": "1"})
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "smollm2"}]})
        if shown != self._authorization:
            return web.json_response({"error": {"message": "no token"}}, status=401)
        if request.path == "/ui/state":
            return web.json_response({"gateways": [{"gateway": self.name}], "service": None})
        if request.path == "/state":
            return web.json_response({"workers": [self.name]})
        self.bodies.append(await request.json())
        question = self.bodies[-1]["messages"][-1]["content"]
        if question == "refuse":
            return web.json_response({"error": {"message": "the context is full"}}, status=400)
        return await self._stream(request, question.split())

    async def _stream(self, request, words):
        response = web.StreamResponse(headers={"x-request-id": "r1", "content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": keep-alive\n\n")
        for word in words:
            await _event(response, {"choices": [{"delta": {"content": f"{word} "}}]})
            self.begun.set()
            if word == "slow":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.gone.set()
            if word == "fail":
                await _event(response, {"error": {"message": "the deadline is over"}})
            if word == "abort":
                request.transport.abort()
            if word in ("break", "abort"):
                return response
        await response.write(b"data: [DONE]\n\n")
        return response


async def _event(response, event):
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
