"""Asks a model a question until it answers, for `helm test`. Arguments: URL, model, seconds to wait at most."""

import json
import sys
import time
import urllib.error
import urllib.request

url, model, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
question = {
    "model": model,
    "temperature": 0,
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "Name the capital of France."}],
}
request = urllib.request.Request(
    f"{url}/v1/chat/completions",
    json.dumps(question).encode(),
    {"content-type": "application/json", "x-legato-explain": "true"},
)
deadline = time.monotonic() + seconds
while True:
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)["choices"][0]["message"]["content"]
            print(f"{model}: {answer!r}, by way of {response.headers.get('x-legato-route')}")
            sys.exit(0 if answer.strip() else "an empty answer")
    except OSError as error:  # no address, no connection, or an error status yet
        detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        print(f"{url}: {error} {detail}", flush=True)
        if time.monotonic() > deadline:
            sys.exit(f"no answer within {seconds:.0f} s")
        time.sleep(1)
