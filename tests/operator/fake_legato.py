"""A stand-in for the `legato` program: probes, state and drain over HTTP, and nothing behind them.

Run as `python fake_legato.py worker|gateway FLAGS`. Files in $FAKE_FOLDER steer it: `NAME.busy` holds the number of
running sequences, `NAME.sick` fails liveness (a word is added each time), and `NAME.stubborn` makes it ignore SIGTERM.
`argument.crash` holds an argument with which workers end with exit code 1. It notes every start in `NAME.starts`, and
which GPUs it sees in `NAME.gpus`.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(os.environ["FAKE_FOLDER"])


def flag(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


NAME = flag("--name", "gateway")
draining = threading.Event()
stopping = threading.Event()


def steered(kind: str) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return (FOLDER / f"{NAME}.{kind}").read_text()
    return None


def known_tokens() -> list[str]:
    data = Path(flag("--token-folder")) / "..data"
    return [path.read_text() for name in ("token", "next", "previous") if (path := data / name).exists()]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/healthz":
            if (sick := steered("sick")) is not None:
                with contextlib.suppress(FileNotFoundError), (FOLDER / f"{NAME}.sick").open("r+") as file:
                    file.write(sick + "asked ")  # not where the test has removed it meanwhile
            return self.answer(200 if sick is None else 503, "ok")
        if self.path == "/readyz":
            loading = steered("loading") or ("stopping" if stopping.is_set() else None)
            return self.answer(503 if loading else 200, loading or "ready")
        if self.headers["authorization"] not in [f"Bearer {token}" for token in known_tokens()]:
            return self.answer(401, "no")
        busy = int(steered("busy") or 0)
        state = {"draining": draining.is_set(), "stopping": stopping.is_set(), "running": busy, "idle": not busy}
        return self.answer(200, json.dumps(state | {"waiting": 0, "transport": "fake"}))

    def do_POST(self) -> None:
        draining.set()
        (FOLDER / f"{NAME}.drained").touch()
        self.answer(200, "{}")

    def do_DELETE(self) -> None:
        if not stopping.is_set():
            draining.clear()
            (FOLDER / f"{NAME}.recalled").touch()
        self.answer(409 if stopping.is_set() else 200, "{}")

    def answer(self, code: int, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def stop() -> None:
    stopping.set()
    if steered("stubborn") is None:
        os._exit(0)


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    crash = FOLDER / "argument.crash"
    if crash.exists() and crash.read_text() in sys.argv:
        print(f"cannot work with {crash.read_text()}", flush=True)
        sys.exit(1)
    (FOLDER / f"{NAME}.gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    with (FOLDER / f"{NAME}.starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    signal.signal(signal.SIGTERM, lambda *_: stop())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = server.server_address[1]
    ports = {"health": port, "control": port} | ({"http": port} if sys.argv[1] == "gateway" else {})
    announce = Path(flag("--announce"))
    fresh = announce.with_suffix(".new")
    fresh.write_text(json.dumps(ports))
    fresh.replace(announce)
    print(f"{NAME} listens", flush=True)
    server.serve_forever()


main()
