"""Starts `legato up` and measures the time to the first token and the memory of each process.

    python benchmarks/service/footprint.py -f benchmarks/manifests/disaggregated.yaml

RSS includes pages of mapped files (libraries, that several processes share), as `ps` counts it. Of a core, weights are
what its own log says, KV is what of it is resident (only a core's KV is shared memory), and the rest is "beyond".
"""

import argparse
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil

CHAT = {"messages": [{"role": "user", "content": "Name the capital of France."}], "temperature": 0, "stream": True}
KEYS = ("VmRSS", "RssFile", "RssShmem")


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
            if match := re.search(r"^(\S+)\s+\|.* ready: .*weights ([\d,]+) MiB", line):
                held[match[1]] = int(match[2].replace(",", ""))
            if line.startswith("Ready: "):
                break
        else:
            raise SystemExit("legato up ended before it was ready")
        print(f"ready after {time.perf_counter() - start:.1f} s")
        first_token(port)
        print(f"first token after {time.perf_counter() - start:.1f} s\n")
        print("| process | RSS, MiB | mapped files | KV | weights | beyond |\n| --- | --- | --- | --- | --- | --- |")
        for name, process in processes(up.pid):
            print(row(name, process, held.get(name.removesuffix(" core")) if name.endswith(" core") else None))
    finally:
        up.send_signal(2)
        up.communicate()


def row(name: str, process: psutil.Process, weights: int | None) -> str:
    """A line of the table; all figures in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    total, files, shared = (int(re.findall(rf"{key}:\s+(\d+) kB", status)[0]) >> 10 for key in KEYS)
    if weights is None:
        return f"| {name} | {total} | {files} | | | |"
    return f"| {name} | {total} | {files} | {shared} | {weights} | {total - shared - weights} |"


def first_token(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**CHAT, "model": model}, timeout=120) as response:
        next(line for line in response.iter_lines() if '"content":"' in line)


def processes(root: int) -> list[tuple[str, psutil.Process]]:
    """(name, process) of `legato up` and everything that it runs."""
    processes = [("legato up", psutil.Process(root))]
    for child in psutil.Process(root).children():
        line = child.cmdline()
        name = line[line.index("--name") + 1] if "--name" in line else "gateway"
        processes.append((name if name == "gateway" else f"{name} server", child))
        processes += [(f"{name} core", core) for core in child.children()]
    return processes


if __name__ == "__main__":
    main()
