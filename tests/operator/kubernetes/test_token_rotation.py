"""The service's token on a real API server: replaced on request."""

import asyncio
import contextlib
from pathlib import Path

from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.wire.demand import DemandReport

ROTATE = "serving.legato.dev/rotate-token"
QUIET = DemandReport("g", 1e6, (), {}, (), 0.0, {}, (), 0, 0, 0, ())


@contextlib.asynccontextmanager
async def _followed(s, folder: Path):
    """Pods that read the Secret as it is, soon after each change; that of pods stays when it is gone."""

    async def follow():
        while True:
            if data := await s.secret():
                for name in {"token", "next", "previous"} - data.keys():
                    (folder / name).unlink(missing_ok=True)
                for name, text in data.items():
                    (folder / name).write_text(text)
                s.kubelet.tokens.reload()
            await asyncio.sleep(0.05)

    s.kubelet.tokens = ServiceTokens(folder=folder)
    s.kubelet.demand = lambda: QUIET
    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _request(s, text):
    await s.edit("InferenceService", "demo", lambda item: item["metadata"].update(annotations={ROTATE: text}))


async def _settled(s, *but):
    """True if all pods show a token that is not one of `but`, and take no other."""
    data = await s.secret()
    return data.keys() == {"token"} and data["token"] not in but and s.kubelet.tokens.known == (data["token"],)


async def test_a_token_is_replaced_on_request_once_and_goes_on_after_the_operator_s_restart(s, build, tmp_path):
    async with _followed(s, tmp_path):
        async with s.operator():
            await s.serve(build())
            first = (await s.secret())["token"]
            stopped = asyncio.Event()
            reload, s.kubelet.tokens.reload = s.kubelet.tokens.reload, lambda: stopped.set()
            await _request(s, "one")
            await s.wait(lambda: _has(s, "next"))
            await stopped.wait()
            assert (await s.secret())["token"] == first, "no pod takes the next one yet"
        s.kubelet.tokens.reload = reload
        async with s.operator("two"):
            await s.wait(lambda: _settled(s, first))
            second = (await s.secret())["token"]
            assert not (await s.condition("Progressing"))[1].startswith("Operator")
            await _request(s, "two")
            await s.wait(lambda: _settled(s, first, second))
            assert await _reasons(s) >= {"TokenRotating", "TokenRotated"}


async def _has(s, key):
    return key in await s.secret()


async def _reasons(s):
    return {item["reason"] for item in await s.events()}
