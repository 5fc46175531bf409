"""The service's token is replaced, lost and edited under streams: real gateways and workers, which follow it."""

import asyncio
import base64
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import yaml

from legato_operator.api import conditions, parsing
from legato_operator.autoscaling import Autoscaler
from legato_operator.clock import SystemClock
from legato_operator.cluster import Object, Ref
from legato_operator.controller import Controller
from legato_operator.errors import ObjectNotFound
from legato_operator.local import following
from legato_operator.local.cluster import LocalCluster, open_cluster
from legato_operator.local.logs import Logs
from legato_operator.local.settings import LocalSettings
from legato_operator.manifests import common, placement
from legato_operator.observing.gateway_api import HttpGateways
from legato_operator.observing.gateway_signals import GatewaySignalSource
from legato_operator.observing.worker_api import HttpWorkers
from legato_operator.reconcile import Reconciler
from legato_protocol import names

PATIENCE = 120.0  # seconds; only a hang reaches it
PROGRAM = (sys.executable, "-m", "legato_cli.main")
TOKENS = 150
PROMPT = "a prompt of more than a few tokens, so that it is computed by a prefill worker and handed over"
PROFILE = """{"source": "a test", "kvTokens": 8192, "startSeconds": 0, "step":
{"perStep": 0.01, "perRow": 1e-5, "perContext": 1e-9, "perToken": 1e-6, "perPair": 1e-10}}"""
MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {{name: test}}
spec:
  model: {{servedName: paced, maxLength: 2048, source: {{builtin: smollm2-135m-instruct}}}}
  engine: {{runner: Paced, profile: {profile}}}
  routing: {{localPrefillBelowTokens: 4, whenPrefillBusy: Wait}}
  transfer: {{transport: TCP, onFailure: {on_failure}}}
  scaling: {{mode: External, prefill: {{min: 1, max: 1}}, decode: {{min: 1, max: 2}}}}
  drain: {{deadline: 20s}}
"""
SERVICE = Ref(names.INFERENCE_SERVICE, "default", "test")
SECRET = Ref("Secret", "default", "test-token")


class Service:
    """A service on a local cluster, whose operator is in this process."""

    def __init__(self, cluster: LocalCluster, session: aiohttp.ClientSession, url: str, lines: list[str]) -> None:
        self.store = cluster.store
        self._session = session
        self._operator: asyncio.Task[None]
        self.start_operator()
        self.lines = lines
        self.http = httpx.AsyncClient(base_url=url, timeout=PATIENCE)
        self.texts: list[str] = []  # of streams that are complete
        self._stop = asyncio.Event()

    def start_operator(self) -> None:
        """One that has seen nothing yet."""
        reconciler = Reconciler(
            self.store,
            HttpWorkers(self._session),
            SystemClock(),
            placement.local(PROGRAM),
            autoscaler=Autoscaler(GatewaySignalSource()),
            gateways=HttpGateways(self._session),
        )
        self._operator = asyncio.create_task(following.run(self.store, Controller(reconciler)))

    async def stop_operator(self) -> None:
        self._operator.cancel()
        await asyncio.wait((self._operator,))

    async def until(self, condition: Callable[[], Awaitable[Any]]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not await condition():  # noqa: ASYNC110 - of other processes
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError("waited in vain\n" + "\n".join(self.lines[-50:])) from None

    async def ready(self, decode: int = 1) -> bool:
        status = (await self.store.get(SERVICE)).get("status", {})
        is_ready = conditions.find(status, conditions.READY).get("status") == "True"
        pools = status.get("pools", {})
        return is_ready and [pools.get(role, {}).get("ready") for role in ("prefill", "decode")] == [1, decode]

    async def tokens(self) -> dict[str, str]:
        """What the Secret holds, by key."""
        try:
            data = (await self.store.get(SECRET))["data"]
        except (ObjectNotFound, KeyError):
            return {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    async def settled_after(self, *tokens: str) -> None:
        """Until one is in use that is none of these, and no other is known."""

        async def settled() -> bool:
            held = await self.tokens()
            return held.keys() == {"token"} and held["token"] not in tokens

        await self.until(settled)

    async def rotate(self, request: str) -> None:
        annotations = {common.ANNOTATION_ROTATE_TOKEN: request}
        await self._apply(SERVICE, {"metadata": {"annotations": annotations}}, "user")

    async def edit_token(self, token: str) -> None:
        await self._apply(SECRET, {"data": {"token": base64.b64encode(token.encode()).decode()}}, "user")

    async def scale_decode(self, count: int) -> None:
        ref = Ref(names.WORKER_POOL, "default", "test-decode")
        await self._apply(ref, {"spec": {"replicas": count}}, "user")

    async def _apply(self, ref: Ref, fields: Object, manager: str) -> None:
        found = await self.store.get(ref)
        metadata = {"name": ref.name, "namespace": ref.namespace, **fields.get("metadata", {})}
        item = {"apiVersion": found["apiVersion"], "kind": ref.kind, **fields, "metadata": metadata}
        await self.store.apply(item, manager, force=True)

    async def pids(self) -> dict[str, tuple[int, int]]:
        """Process and restarts of each pod."""
        pods = (await self.store.list("Pod")).items
        restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}
        return {pod["metadata"]["name"]: (pod["status"]["pid"], restarts[pod["metadata"]["name"]]) for pod in pods}

    async def refusals(self) -> list[str]:
        return [line for line in self.lines if "refused" in line or "refuses" in line]

    async def stream(self) -> str:
        """One completion, whole. Raises AssertionError and httpx.HTTPError."""
        body = {"model": "paced", "prompt": PROMPT, "max_tokens": TOKENS, "stream": True, "seed": 1}
        text, finish = "", None
        async with self.http.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}) as answer:
            assert answer.status_code == 200, (await answer.aread()).decode()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    for choice in event["choices"]:
                        text, finish = text + choice["text"], choice["finish_reason"] or finish
        assert finish == "length", finish
        return text

    @contextlib.asynccontextmanager
    async def streaming(self, count: int = 3) -> AsyncIterator[None]:
        """So many streams at any time; none of them fails."""

        async def go_on() -> None:
            while not self._stop.is_set():
                self.texts.append(await self.stream())

        self._stop.clear()
        tasks = [asyncio.create_task(go_on()) for _ in range(count)]
        try:
            yield
        finally:
            self._stop.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results == [None] * count, "\n".join([*map(repr, results), *self.lines[-50:]])


@contextlib.asynccontextmanager
async def serving(folder: Path, on_failure: str = "Fail") -> AsyncIterator[Service]:
    profile = folder / "profile.json"
    profile.write_text(PROFILE)
    written = yaml.safe_load(MANIFEST.format(profile=profile, on_failure=on_failure))
    lines: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with (
        open_cluster(Logs(lines.append), SystemClock(), os.environ, LocalSettings(), listener) as cluster,
        aiohttp.ClientSession() as session,
    ):
        service = Service(cluster, session, url, lines)
        try:
            await cluster.store.apply(parsing.to_object(parsing.service_from_object(written), written), "user")
            await service.until(service.ready)
            yield service
        finally:
            await service.http.aclose()
            listener.close()
            await service.stop_operator()


def test_a_token_is_replaced_lost_and_edited_under_streams_and_none_fails(tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path) as service:
            before, first = await service.pids(), (await service.tokens())["token"]
            alone = await service.stream()
            async with service.streaming():
                await service.rotate("one")
                await service.settled_after(first)
                second = (await service.tokens())["token"]
                await service.store.delete(SECRET)
                await service.until(lambda: _is(service, {"token": second}))
                await service.edit_token("by-hand")
                await service.settled_after(first, second)
                assert await service.tokens() == {"token": "by-hand"}
                await service.scale_decode(2)  # with the new token, beside those that began with another one
                await service.until(lambda: service.ready(2))
            assert set(service.texts) == {alone}
            after = await service.pids()
            assert {name: after[name] for name in before} == before, "nothing was started anew"
            assert not await service.refusals()

    asyncio.run(check())


def test_a_token_that_nobody_remembers_is_made_anew_and_old_and_new_workers_go_on_together(tmp_path: Path) -> None:
    """The Secret is lost, and so is the operator that knew it: pods keep the old one until the new one has spread. A
    hand-off between a pod that shows the old one and one that knows only the new may have to be tried again."""

    async def check() -> None:
        async with serving(tmp_path, on_failure="Retry") as service:
            first = (await service.tokens())["token"]
            async with service.streaming():
                await service.stop_operator()
                await service.store.delete(SECRET)
                service.start_operator()
                await service.settled_after(first)
                await service.scale_decode(2)  # it knows nothing of the old one
                await service.until(lambda: service.ready(2))
                shown = len(service.texts)
                await service.until(lambda: _are(service, shown + 6))
            assert len(set(service.texts)) == 1
            assert any("refuses the service's token" in line for line in service.lines), "told on one side"
            assert any("refused 127.0.0.1" in line for line in service.lines), "and on the other"

    asyncio.run(check())


async def _is(service: Service, held: dict[str, str]) -> bool:
    return await service.tokens() == held


async def _are(service: Service, count: int) -> bool:
    return len(service.texts) >= count
