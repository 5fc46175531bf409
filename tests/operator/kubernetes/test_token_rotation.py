"""The service's token on a real API server: replaced on request, and healed when its Secret is lost or edited."""

import asyncio
import base64
import contextlib
from pathlib import Path

from legato_operator.cluster import Ref
from legato_operator.errors import ClusterError
from legato_protocol.demand import DemandReport
from legato_protocol.followed_tokens import ServiceTokens

ROTATE = "serving.legato.dev/rotate-token"
QUIET = DemandReport("g", 1e6, (), {}, (), 0.0, {}, (), 0, 0, 0, ())


async def _data(s):
    """What the Secret holds, by key."""
    try:
        data = (await s.cluster.get(Ref("Secret", s.name, "demo-token"))).get("data", {})
    except ClusterError:
        return {}
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


@contextlib.asynccontextmanager
async def _followed(s, folder: Path):
    """Pods that read the Secret as it is, soon after each change; that of pods stays when it is gone."""

    async def follow():
        while True:
            if data := await _data(s):
                for name in ("token", "next", "previous"):
                    if name in data:
                        (folder / name).write_text(data[name])
                    else:
                        (folder / name).unlink(missing_ok=True)
                s.kubelet.tokens.look()
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
    def annotate(item):
        item["metadata"].setdefault("annotations", {})[ROTATE] = text

    await s.edit("InferenceService", "demo", annotate)


async def _settled(s, *but):
    """Whether all pods show a token that is none of `but`, and take no other."""
    data = await _data(s)
    return data.keys() == {"token"} and data["token"] not in but and s.kubelet.tokens.known == (data["token"],)


async def test_a_token_is_replaced_on_request_once_and_goes_on_after_the_operator_s_restart(s, build, tmp_path):
    async with _followed(s, tmp_path):
        async with s.operator():
            await s.make(build())
            await s.wait(s.ready)
            first = (await _data(s))["token"]
            stopped = asyncio.Event()
            look, s.kubelet.tokens.look = s.kubelet.tokens.look, lambda: stopped.set()
            await _request(s, "one")
            await s.wait(lambda: _has(s, "next"))
            await stopped.wait()
            assert (await _data(s))["token"] == first, "no pod takes the next one yet"
        s.kubelet.tokens.look = look
        async with s.operator("two"):
            await s.wait(lambda: _settled(s, first))
            second = (await _data(s))["token"]
            assert not (await s.condition("Progressing"))[1].startswith("Operator")
            await _request(s, "two")
            await s.wait(lambda: _settled(s, first, second))
            events = await _reasons(s)
            assert events >= {"TokenRotating", "TokenRotated"}


async def test_a_secret_that_is_deleted_or_emptied_is_as_it_was_and_an_edit_comes_into_use_once_all_pods_take_it(
    s, build, tmp_path
):
    async with _followed(s, tmp_path), s.operator():
        await s.make(build())
        await s.wait(s.ready)
        before = await _data(s)
        await s.cluster.delete(Ref("Secret", s.name, "demo-token"))
        await s.wait(lambda: _data(s), before)
        await s.edit("Secret", "demo-token", lambda item: item.pop("data"))
        await s.wait(lambda: _data(s), before)
        assert "TokenRestored" in await _reasons(s)
        assert s.kubelet.tokens.known == (before["token"],)
        assert await s.ready()
        mine = base64.b64encode(b"mine").decode()
        await s.edit("Secret", "demo-token", lambda item: item["data"].update(token=mine))
        await s.wait(lambda: _data(s), {"token": "mine"})
        await s.wait(lambda: _settled(s, before["token"]))
        assert "TokenEdited" in await _reasons(s)


async def _has(s, key):
    return key in await _data(s)


async def _reasons(s):
    return {item["reason"] for item in await s.events()}
