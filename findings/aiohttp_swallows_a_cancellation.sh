#!/usr/bin/env bash
# aiohttp swallows another timeout's cancellation if its own total timeout passes in the same iteration of the event loop.
#
# Expected: `asyncio.timeout` around requests with `ClientTimeout(total=...)` ends the block when its time has passed, even if
# the caller catches aiohttp's TimeoutError inside the block and tries again. kopf opens a watch again after its
# `inactivity_timeout`.
#
# What happens: while aiohttp waits for the response's headers, two nested contexts of one timer are open. The timer cancels the
# task once, but each context takes one cancellation back. If `asyncio.timeout` has cancelled the task too, that cancellation is
# lost: aiohttp raises its own TimeoutError, and the outer block never ends. Both timers fire in one iteration if the loop was
# blocked while they became due, as on a machine short of processor time. kopf sets both around its watches and retries inside:
# the retry succeeds, the next event moves the expired timeout, and RuntimeError ends the watch and then the whole operator.
# Different timeouts only need a longer block or, with retries, a later one. An infinite `inactivity_timeout` avoids it.
#
# Why it matters for LLM serving: operators and gateways nest deadlines around retries. An API server slow to answer and a node
# short of processor time come together when many large models start, and the operator ends just then.
#
# Seen on 2026-11-30, Linux x86-64:
#   Python 3.11.7, aiohttp 3.14.5, kopf 1.45.2
#   aiohttp, timeouts of 3 and 3 s: the block did not end
#   kopf, client and inactivity timeout 3 and 3 s: ended: Cannot change state of expiring Timeout
#   kopf, client and inactivity timeout 3 and inf s: runs, handled both changes
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet aiohttp==3.14.5 kopf==1.45.2
cat >"$folder/timeouts.py" <<'END'
import asyncio
import http.server
import json
import logging
import math
import platform
import threading
import time
from importlib.metadata import version

import aiohttp
import kopf

SECONDS = 3
WATCH = "/apis/example.com/v1/models"
MODELS = {"name": "models", "kind": "Model", "singularName": "model", "namespaced": True, "verbs": ["list", "watch"]}
NAMESPACES = {**MODELS, "name": "namespaces", "kind": "Namespace", "singularName": "namespace", "namespaced": False}
V1 = {"version": "v1"}
ANSWERS = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [NAMESPACES]},
    "/apis": {"groups": [{"name": "example.com", "preferredVersion": V1, "versions": [V1]}]},
    "/apis/example.com/v1": {"resources": [MODELS]},
    WATCH: {"kind": "ModelList", "metadata": {"resourceVersion": "1"}, "items": []},
}


def change(name):
    metadata = {"name": name, "uid": name, "namespace": "default", "resourceVersion": "2"}
    return {"type": "ADDED", "object": {"apiVersion": "example.com/v1", "kind": "Model", "metadata": metadata}}


class Api(http.server.BaseHTTPRequestHandler):
    """A Kubernetes API whose first watch is not answered in time. Later watches report two changes and stay open."""

    def do_GET(self):
        path, _, query = self.path.partition("?")
        watch = "watch=true" in query
        if watch and not self.server.asked.is_set():
            self.server.asked.set()
            time.sleep(3 * SECONDS)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if not watch:
            self.wfile.write(json.dumps(ANSWERS[path]).encode())
            return
        for name in ("first", "second"):
            self.wfile.write(json.dumps(change(name)).encode() + b"\n")
            time.sleep(0.5)
        time.sleep(3 * SECONDS)

    def log_message(self, *_):
        pass


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads = True
    server.asked = threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


async def block_loop(server):
    """Blocks the loop from a second after the first watch to a second after its client timeout."""
    while not server.asked.is_set():
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    time.sleep(SECONDS)


async def run_aiohttp():
    server = serve()
    blocking = asyncio.create_task(block_loop(server))
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(SECONDS):
            try:
                await session.get(f"{server.url}{WATCH}?watch=true", timeout=aiohttp.ClientTimeout(total=SECONDS))
            except TimeoutError:
                await asyncio.sleep(1)  # before another try
            await blocking
            return "the block did not end"
    except TimeoutError:
        return "the block ended"


async def run_kopf(inactivity):
    server, names, registry, settings = serve(), set(), kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.watching.client_timeout = SECONDS
    settings.watching.inactivity_timeout = inactivity

    @kopf.on.login(registry=registry)
    async def login(**_):
        return kopf.ConnectionInfo(server=server.url)

    @kopf.on.event("example.com", "v1", "models", registry=registry)
    async def handle(name, **_):
        names.add(name)

    coroutine = kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True)
    operator = asyncio.create_task(coroutine)
    await block_loop(server)
    for _ in range(100):
        await asyncio.wait([operator], timeout=0.1)
        if operator.done():
            return f"ended: {operator.exception()}"
        if len(names) == 2:
            operator.cancel()
            await asyncio.wait([operator])
            return "runs, handled both changes"
    operator.cancel()
    await asyncio.wait([operator])
    return f"runs, handled {sorted(names)}"


logging.disable()
print(f"Python {platform.python_version()}, aiohttp {version('aiohttp')}, kopf {version('kopf')}")
print(f"aiohttp, timeouts of {SECONDS} and {SECONDS} s:", asyncio.run(run_aiohttp()))
for inactivity in (SECONDS, math.inf):
    print(f"kopf, client and inactivity timeout {SECONDS} and {inactivity} s:", asyncio.run(run_kopf(inactivity)))
END
"$folder/venv/bin/python" "$folder/timeouts.py" | tee "$folder/output"
for line in 's: the block did not end' '3 s: ended: Cannot change state of expiring Timeout' 'inf s: runs, handled both changes'; do
    if ! grep -q "$line" "$folder/output"; then
        echo "the behaviour has changed" >&2
        exit 1
    fi
done
