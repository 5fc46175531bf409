"""`legato prepare --hugging-face`, by the real huggingface_hub, from a hub of this machine."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fake_hub
import pytest
from fake_hub import COMMIT, REPO, TOKEN, WEIGHTS, Hub

from legato_cli import hub, model
from legato_protocol.names import ENV_CACHE

SPEC = f"hf:{REPO}@{COMMIT}"


@pytest.fixture
def server() -> Iterator[Hub]:
    with fake_hub.serving() as served:
        yield served


@dataclass
class Ended:
    code: int
    out: str
    last: str  # line


def environ(server: Hub, cache: Path, token: str = TOKEN) -> dict[str, str]:
    variables = os.environ | {"HF_ENDPOINT": server.url, "HF_TOKEN": token, "HF_HOME": str(cache / "home")}
    return variables | {ENV_CACHE: str(cache), "HF_HUB_DOWNLOAD_TIMEOUT": "5"}


def prepare(server: Hub, cache: Path, *flags: str, repo: str = REPO, commit: str = COMMIT, token: str = TOKEN) -> Ended:
    command = [sys.executable, "-m", "legato_cli.main", "prepare", "--hugging-face", repo, "--revision", commit, *flags]
    done = subprocess.run(command, env=environ(server, cache, token), capture_output=True, text=True, timeout=100)
    assert token not in done.stdout + done.stderr
    return Ended(done.returncode, done.stdout, (done.stderr.splitlines() or [""])[-1])


def resolve(cache: Path, find: Callable[..., Path] = model.resolve) -> Path:
    return find(SPEC, lambda _line: None, {ENV_CACHE: str(cache)})


def test_a_commit_is_downloaded_once_and_found(server: Hub, tmp_path: Path) -> None:
    with pytest.raises(model.ModelUnavailable, match=f"legato prepare --hugging-face {REPO} --revision {COMMIT}"):
        resolve(tmp_path)
    first = prepare(server, tmp_path)
    assert (first.code, first.last) == (0, "")
    assert f"legato: downloading {SPEC}: 3 files, 1.0 MB" in first.out
    folder = resolve(tmp_path)
    assert folder == resolve(tmp_path, model.resolve_header)
    names = {"config.json", "tokenizer.json", "model.safetensors"}
    assert {name: (folder / name).read_bytes() for name in names} == {name: server.files[name] for name in names}
    assert {file.name for file in folder.iterdir() if not file.name.startswith(".")} == names
    server.asked.clear()
    assert prepare(server, tmp_path).code == 0
    assert server.asked == []


def test_gateways_need_no_weights_and_workers_are_not_given_half(server: Hub, tmp_path: Path) -> None:
    assert prepare(server, tmp_path, "--header-only").code == 0
    folder = resolve(tmp_path, model.resolve_header)
    assert not (folder / "model.safetensors").exists()
    with pytest.raises(model.ModelUnavailable, match="not all of it"):
        resolve(tmp_path)
    assert prepare(server, tmp_path).code == 0
    assert resolve(tmp_path) == folder


def test_what_was_interrupted_is_resumed(server: Hub, tmp_path: Path) -> None:
    """Within a process where the line broke; by the next process with the files that are missing."""
    broken = {"model.safetensors": 3}

    def serve(name: str, content: bytes) -> bytes:
        if broken.get(name, 0):
            broken[name] -= 1
            return content[: len(content) // 2] if broken[name] else b""
        return content

    server.serve = serve
    assert prepare(server, tmp_path).code == 0
    assert (resolve(tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_download_that_failed_goes_on_later(server: Hub, tmp_path: Path) -> None:
    server.serve = lambda name, content: content[:-1] + b"x" if name == "model.safetensors" else content
    failed = prepare(server, tmp_path)
    assert (failed.code, failed.last) == (
        1,
        f"legato prepare: {SPEC}: these files are damaged or missing: model.safetensors",
    )
    with pytest.raises(model.ModelUnavailable, match="not all of it"):
        resolve(tmp_path)
    left = resolve_folder(tmp_path) / ".cache" / "huggingface" / "download" / "x.1234.incomplete"
    left.write_bytes(b"of a process that was killed")
    server.serve = lambda _name, content: content
    server.asked.clear()
    assert prepare(server, tmp_path).code == 0
    fetched = [line for line in server.asked if line.startswith("GET") and "/resolve/" in line]
    assert fetched == [f"GET /{REPO}/resolve/{COMMIT}/model.safetensors"]
    assert not left.exists()


def test_a_folder_that_cannot_be_written_to_is_named(server: Hub, tmp_path: Path) -> None:
    """The system's own words name no file where a disk is full, or as here, files may not grow."""
    command = [sys.executable, "-m", "legato_cli.main", "prepare", "--hugging-face", REPO, "--revision", COMMIT]
    limited = ["bash", "-c", 'ulimit -f 200; exec "$@"', "-", *command]
    done = subprocess.run(limited, env=environ(server, tmp_path), capture_output=True, text=True, timeout=100)
    folder = resolve_folder(tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"legato prepare: {SPEC}: cannot be kept in {folder}: [Errno 27] ")
    assert not list(folder.glob(".legato-whole"))
    assert prepare(server, tmp_path).code == 0


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("CAS service error\nsource"), "the download failed: CAS service error"),  # of hf_xet, as the next
        (PermissionError("the token is expired"), "the download failed: the token is expired"),
        (ConnectionError("no route"), "cannot reach the hub: no route"),
        (OSError(28, "No space left on device"), "cannot be kept in FOLDER: [Errno 28] No space left on device"),
    ],
)
def test_whatever_fails_is_told_with_what_was_asked_for(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*_: object) -> None:
        raise error

    monkeypatch.setattr(hub, "_fetch", fetch)
    with pytest.raises(hub.HubUnreachable) as raised:
        hub.download(hub.parse(SPEC), tmp_path, lambda _line: None)
    assert str(raised.value) == f"{SPEC}: {told.replace('FOLDER', str(tmp_path))}"


@contextlib.contextmanager
def stalled(server: Hub, cache: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`legato` with these arguments, once the hub has begun to serve a file, which it never ends."""
    asked, ended = threading.Event(), threading.Event()

    def serve(file: str, content: bytes) -> bytes:
        if file == name:
            asked.set()
            ended.wait(100)
        return content

    server.serve = serve
    variables = environ(server, cache) | {"HF_HUB_DOWNLOAD_TIMEOUT": "90"}
    command = [sys.executable, "-m", "legato_cli.main", *arguments]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert asked.wait(100)
            yield process
        finally:
            ended.set()
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_download_at_once_and_the_next_one_goes_on(
    number: signal.Signals, server: Hub, tmp_path: Path
) -> None:
    arguments = ("prepare", "--hugging-face", REPO, "--revision", COMMIT)
    with stalled(server, tmp_path, "model.safetensors", *arguments) as process:
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    server.serve = lambda _name, content: content
    assert prepare(server, tmp_path).code == 0


def resolve_folder(cache: Path) -> Path:
    return hub.parse(SPEC).folder(cache)


@pytest.mark.parametrize(
    ("refusal", "token", "code", "reason"),
    [
        ((404, "RepoNotFound"), TOKEN, 2, "no such repository, or none that HF_TOKEN may read"),
        ((404, "RevisionNotFound"), TOKEN, 2, "the repository has no such commit"),
        (
            (403, "GatedRepo"),
            TOKEN,
            2,
            "access is restricted (request it on the hub, and set HF_TOKEN to a token of that account)",
        ),
        ((403, ""), TOKEN, 2, "the hub refuses HF_TOKEN (403)"),
        (None, "hf_another", 2, "no such repository, or none that HF_TOKEN may read"),
    ],
)
def test_a_refusal_ends_with_its_reason(
    refusal: tuple[int, str] | None, token: str, code: int, reason: str, server: Hub, tmp_path: Path
) -> None:
    server.refusal = refusal
    ended = prepare(server, tmp_path, token=token)
    assert (ended.code, ended.last) == (code, f"legato prepare: {SPEC}: {reason}")


def test_a_hub_in_trouble_may_be_asked_again(server: Hub, tmp_path: Path) -> None:
    server.refusal = (418, "")
    ended = prepare(server, tmp_path)
    assert (ended.code, ended.last) == (1, f"legato prepare: {SPEC}: the hub answers 418")
    server.refusal = None
    assert prepare(server, tmp_path).code == 0


def test_a_hub_that_cannot_be_reached_may_be_asked_again(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the library tries for half a minute otherwise
    ended = prepare(server, tmp_path)
    assert ended.code == 1
    assert ended.last.startswith(f"legato prepare: {SPEC}: cannot reach the hub: ")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_repository_of_another_kind_is_refused(missing: str, server: Hub, tmp_path: Path) -> None:
    del server.files[missing]
    pattern = "*.safetensors" if missing == "model.safetensors" else missing
    ended = prepare(server, tmp_path)
    assert (ended.code, ended.last) == (
        2,
        f"legato prepare: {SPEC}: the repository has no {pattern}, which is needed",
    )


def test_a_folder_of_ones_own_can_be_given_but_is_not_overwritten(server: Hub, tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert prepare(server, tmp_path, "--into", str(own)).code == 0
    assert (own / "model.safetensors").read_bytes() == WEIGHTS
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("of another model")
    ended = prepare(server, tmp_path, "--into", str(other))
    assert ended.code == 2
    assert "already has other files" in ended.last
    assert (other / "config.json").read_text() == "of another model"
    assert "has hf:" in prepare(server, tmp_path, "--into", str(own), commit="f" * 40).last


@pytest.mark.parametrize(
    ("repo", "commit"),
    [
        (REPO, "main"),
        (REPO, "v1.0"),
        (REPO, COMMIT[:-1]),
        (REPO, COMMIT.upper().replace("0", "G")),
        (REPO, ""),
        ("../../etc", COMMIT),
        ("owner/../other", COMMIT),
        ("a/b/c", COMMIT),
        ("", COMMIT),
        (".", COMMIT),
    ],
)
def test_what_is_no_commit_of_a_repository_is_refused(repo: str, commit: str, tmp_path: Path) -> None:
    with pytest.raises(hub.HubRefuses, match=r"not a valid (revision|repository): "):
        hub.HubSnapshot(repo, commit)
    with pytest.raises(model.ModelUnavailable, match=r"not a valid (revision|repository): "):
        model.resolve(f"hf:{repo}@{commit}", lambda _line: None, {ENV_CACHE: str(tmp_path)})


def test_a_branch_is_refused_by_the_command(server: Hub, tmp_path: Path) -> None:
    ended = prepare(server, tmp_path, commit="main")
    assert ended.code == 2
    assert "not a valid revision: main (a commit of 40 hex digits" in ended.last
    assert server.asked == []


def test_the_newest_commit_of_a_repository_is_found(server: Hub, tmp_path: Path) -> None:
    """`legato up OWNER/NAME` takes it, and the download is of exactly that commit."""
    command = [sys.executable, "-m", "legato_cli.main", "up", REPO, "--print"]
    done = subprocess.run(
        command, env=environ(server, tmp_path), capture_output=True, text=True, timeout=120, check=False
    )
    assert f"GET /api/models/{REPO}" in server.asked
    assert f"legato: {SPEC} is in " in done.stderr
    assert done.returncode == 2  # what this hub serves is no model
    assert done.stderr.splitlines()[-1].startswith(f"legato up: model '{REPO}': ")


ADAPTER = {"adapter_config.json": b'{"peft_type": "LORA"}', "adapter_model.safetensors": WEIGHTS}


def test_of_an_adapter_its_two_files_are_downloaded(server: Hub, tmp_path: Path) -> None:
    """A folder with them is not taken for a model, though the repository may hold one as well."""
    server.files |= ADAPTER
    done = prepare(server, tmp_path, "--adapter", "sql")
    assert (done.code, done.last) == (0, "")
    assert f"legato: downloading {SPEC}: 2 files, 1.0 MB" in done.out
    folder = resolve_folder(tmp_path)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")} == ADAPTER
    with pytest.raises(model.ModelUnavailable, match="not all of it"):
        resolve(tmp_path)
    server.asked.clear()
    assert prepare(server, tmp_path, "--adapter", "law").code == 0
    assert server.asked == []
    assert prepare(server, tmp_path).code == 0
    assert resolve(tmp_path) == folder


@pytest.mark.parametrize("missing", ADAPTER)
def test_a_repository_without_an_adapter_is_refused_by_the_adapters_name(
    missing: str, server: Hub, tmp_path: Path
) -> None:
    server.files |= {name: content for name, content in ADAPTER.items() if name != missing}
    ended = prepare(server, tmp_path, "--adapter", "sql")
    reason = f"adapter sql: {SPEC}: the repository has no {missing}, which is needed"
    assert (ended.code, ended.last) == (2, f"legato prepare: {reason}")


def adapted_manifest(folder: Path) -> Path:
    """Of a model that is a file, with an adapter of the hub."""
    (folder / "m.gguf").touch()
    adapters = [
        {"name": "here", "source": {"path": "adapter"}},
        {"name": "sql", "source": {"huggingFace": {"repo": REPO, "revision": COMMIT}}},
    ]
    manifest = {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"source": {"path": "m.gguf"}, "adapters": adapters}},
    }
    file = folder / "manifest.yaml"
    file.write_text(json.dumps(manifest))
    return file


def test_a_manifest_whose_adapter_cannot_be_downloaded_is_not_served(server: Hub, tmp_path: Path) -> None:
    """The message names its field."""
    command = [sys.executable, "-m", "legato_cli.main", "up", "-f", str(adapted_manifest(tmp_path)), "--port", "0"]
    done = subprocess.run(
        command, env=environ(server, tmp_path), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    field = "spec.model.adapters.1.source.huggingFace"
    reason = "the repository has no adapter_config.json, which is needed"
    assert done.stderr.splitlines()[-1] == f"legato up: {field}: adapter sql: {SPEC}: {reason}"


def test_a_signal_ends_a_start_that_downloads_an_adapter_and_its_download(server: Hub, tmp_path: Path) -> None:
    server.files |= ADAPTER
    file = adapted_manifest(tmp_path)
    with stalled(server, tmp_path, "adapter_model.safetensors", "up", "-f", str(file), "--port", "0") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert f"legato: downloading {SPEC}: 2 files, 1.0 MB" in process.stdout.read()
    until_free(resolve_folder(tmp_path))


def test_nothing_is_downloaded_for_one_that_was_killed(server: Hub, tmp_path: Path) -> None:
    server.files |= ADAPTER
    file = adapted_manifest(tmp_path)
    with stalled(server, tmp_path, "adapter_model.safetensors", "up", "-f", str(file), "--port", "0") as process:
        process.kill()
    until_free(resolve_folder(tmp_path))


def until_free(folder: Path) -> None:
    """No process downloads to this folder any more."""
    until = time.monotonic() + 30
    with (folder / ".legato-lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                assert time.monotonic() < until, "it goes on"
                time.sleep(0.02)
