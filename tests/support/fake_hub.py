"""A Hugging Face hub of this machine, as far as `huggingface_hub` asks it when it downloads."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from legato_protocol.names import ENV_CACHE

REPO, COMMIT, TOKEN = "owner/tiny-model", "0123456789abcdef" * 2 + "01234567", "hf_of_a_test"
WEIGHTS = bytes(range(256)) * 4096
LARGE = (".safetensors", ".gguf")


FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "README.md": b"a model",
    "onnx/model.json": b"{}",
    "pytorch_model.bin": b"the same weights",
}


@dataclass
class Hub:
    """One repository as the hub serves it. `serve` may change an answer: it gets path and whole content."""

    files: dict[str, bytes] = field(default_factory=FILES.copy)
    refusal: tuple[int, str] | None = None  # status and X-Error-Code of every answer
    serve: Callable[[str, bytes], bytes] = lambda _name, content: content
    asked: list[str] = field(default_factory=list)
    sent: int = 0  # bytes of contents
    url: str = ""

    def environ(self, cache: Path) -> dict[str, str]:
        """Environment of a process that downloads from here into a cache folder."""
        token = {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HUB_DOWNLOAD_TIMEOUT": "90"}
        return token | {"HF_HOME": str(cache / "home"), ENV_CACHE: str(cache)}

    @contextlib.contextmanager
    def stalling(self, stalled: str) -> Iterator[threading.Event]:
        """Within this, the file `stalled` does not arrive. The event is set once it was asked for."""
        asked, ended = threading.Event(), threading.Event()

        def serve(name: str, content: bytes) -> bytes:
            if name == stalled:
                asked.set()
                ended.wait(100)
            return content

        self.serve = serve
        try:
            yield asked
        finally:
            ended.set()
            self.serve = lambda _name, content: content

    def tree(self) -> bytes:
        return json.dumps([_entry(name, content) for name, content in self.files.items()]).encode()


def _entry(name, content):
    entry = {"type": "file", "path": name, "size": len(content), "oid": _git_hash(content)}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry


def _git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self):
        path, hub, kind = urlsplit(self.path).path, self.hub, {"Content-Type": "application/json"}
        hub.asked.append(f"{self.command} {path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif hub.refusal:
            self._answer(hub.refusal[0], b"", {"X-Error-Code": hub.refusal[1]})
        elif path == f"/api/models/{REPO}/tree/{COMMIT}":
            self._answer(200, hub.tree(), kind)
        elif path == f"/api/models/{REPO}":
            self._answer(200, json.dumps({"id": REPO, "sha": COMMIT}).encode(), kind)
        elif (name := path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")) in hub.files:
            self._file(name, hub.files[name])
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _file(self, name, whole):
        content = self.hub.serve(name, whole) if self.command == "GET" else whole
        etag = hashlib.sha256(whole).hexdigest() if name.endswith(LARGE) else _git_hash(whole)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        start, end = 0, len(whole)
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(wanted[1]), min(end, int(wanted[2] or end) + 1)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(whole)}"
        self._answer(206 if wanted else 200, content[start:end], headers, end - start)

    def _answer(self, status, content, headers, length=None):
        length = len(content) if length is None else length
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.hub.sent += len(content)
            with contextlib.suppress(ConnectionError):  # a download that was killed
                self.wfile.write(content)
            self.close_connection |= len(content) < length  # the line breaks

    def log_message(self, *_):
        """Not of interest."""


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers while this is open."""
    served = Hub()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": served}))
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{http.server_address[1]}"
    yield served
    http.shutdown()
    http.server_close()
