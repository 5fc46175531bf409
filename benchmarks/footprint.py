"""Starts `legato up` and tells how long it took to the first token and what memory each process holds.

    benchmarks/footprint.py -f benchmarks/manifests/disaggregated.yaml

RSS includes shared pages (libraries that several processes map), as `ps` and Kubernetes count it. The last column is
what a core's own log says of its weights and KV (untouched KV pages are not resident yet).
"""

import argparse
import re
import socket
import subprocess
import sys
import time

import httpx
import psutil

CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "stream": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-f", "--file", default="examples/quickstart/inferenceservice.yaml")
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.perf_counter()
    command = [sys.executable, "-m", "legato_cli.main", "up", "-f", args.file, "--port", str(port)]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        held = {}
        for line in up.stdout or ():
            if match := re.search(r"^(\S+)\s+\|.* ready: .*weights ([\d,]+) MiB, KV ([\d,]+) MiB", line):
                held[match[1]] = int(match[2].replace(",", "")) + int(match[3].replace(",", ""))
            if line.startswith("Ready: "):
                break
        else:
            raise SystemExit("legato up ended before it was ready")
        print(f"ready after {time.perf_counter() - start:.1f} s")
        first_token(port)
        print(f"first token after {time.perf_counter() - start:.1f} s\n")
        print("| process | RSS, MiB | weights and KV, MiB |\n| --- | --- | --- |")
        for name, process in processes(up.pid):
            print(f"| {name} | {process.memory_info().rss / 2**20:.0f} | {held.get(name.removesuffix(' core'), '')} |")
    finally:
        up.send_signal(2)
        up.communicate()


def first_token(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**CHAT, "model": model}, timeout=120) as response:
        next(line for line in response.iter_lines() if '"content":"' in line)


def processes(root: int) -> list[tuple[str, psutil.Process]]:
    """(name, process) of `legato up` and everything that it runs."""
    found = [("legato up", psutil.Process(root))]
    for child in psutil.Process(root).children():
        line = child.cmdline()
        name = line[line.index("--name") + 1] if "--name" in line else "gateway"
        found.append((name if name == "gateway" else f"{name} server", child))
        found += [(f"{name} core", core) for core in child.children()]
    return found


if __name__ == "__main__":
    main()
