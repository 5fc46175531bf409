"""`legato prepare --hugging-face`, by the real huggingface_hub, from a hub of this machine."""

import contextlib
import fcntl
import functools
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_hub
import huggingface_hub
import local_services
import pytest
from fake_hub import COMMIT, REPO, TOKEN, WEIGHTS, Hub

from legato_cli import hub, model
from legato_protocol import names

SPEC = f"hf:{REPO}@{COMMIT}"
PREPARE = ("prepare", "--hugging-face", REPO, "--revision", COMMIT)
ADAPTER = {"adapter_config.json": b'{"peft_type": "LORA"}', "adapter_model.safetensors": WEIGHTS}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The library reads HF_ENDPOINT when it is imported, so in this process it is given the address."""
    with fake_hub.serving() as served:
        for name, value in served.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(huggingface_hub, "HfApi", functools.partial(huggingface_hub.HfApi, endpoint=served.url))
        yield served


@pytest.fixture
def prepare(server: Hub, legato: Any) -> Callable[..., Any]:
    def run(*flags: object, repo: str = REPO, commit: str = COMMIT) -> Any:
        ended = legato("prepare", "--hugging-face", repo, "--revision", commit, *flags)
        assert TOKEN not in ended.out + ended.err
        return ended

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hub.parse(SPEC).folder(tmp_path)


def resolve(cache: Path, find: Callable[..., Path] = model.resolve) -> Path:
    return find(SPEC, lambda _line: None, {names.ENV_CACHE: str(cache)})


def files_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")}


def test_a_commit_is_downloaded_once_and_found(server, prepare, tmp_path):
    with pytest.raises(model.ModelUnavailable, match=f"legato prepare --hugging-face {REPO} --revision {COMMIT}"):
        resolve(tmp_path)
    code, out, err = prepare()
    assert (code, err) == (0, "")
    assert f"legato: downloading {SPEC}: 3 files, 1.0 MB" in out
    folder = resolve(tmp_path)
    assert folder == resolve(tmp_path, model.resolve_header)
    assert files_in(folder) == {
        name: server.files[name] for name in ("config.json", "tokenizer.json", "model.safetensors")
    }
    server.asked.clear()
    assert prepare().code == 0
    assert server.asked == []


def test_gateways_need_no_weights_and_workers_are_not_given_half(prepare, tmp_path):
    assert prepare("--header-only").code == 0
    folder = resolve(tmp_path, model.resolve_header)
    assert not (folder / "model.safetensors").exists()
    with pytest.raises(model.ModelUnavailable, match="not all of it"):
        resolve(tmp_path)
    assert prepare().code == 0
    assert resolve(tmp_path) == folder


def test_what_was_interrupted_is_resumed(server, prepare, tmp_path):
    """Within a process where the line broke; by the next process with the files that are missing."""
    broken = {"model.safetensors": 3}

    def serve(name: str, content: bytes) -> bytes:
        if broken.get(name, 0):
            broken[name] -= 1
            return content[: len(content) // 2] if broken[name] else b""
        return content

    server.serve = serve
    assert prepare().code == 0
    assert (resolve(tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_download_that_failed_goes_on_later(server, prepare, folder, tmp_path):
    server.serve = lambda name, content: content[:-1] + b"x" if name == "model.safetensors" else content
    reason = "these files are damaged or missing: model.safetensors"
    assert prepare()[::2] == (1, f"legato prepare: {SPEC}: {reason}\n")
    with pytest.raises(model.ModelUnavailable, match="not all of it"):
        resolve(tmp_path)
    left = folder / ".cache" / "huggingface" / "download" / "x.1234.incomplete"
    left.write_bytes(b"of a process that was killed")
    server.serve = lambda _name, content: content
    server.asked.clear()
    assert prepare().code == 0
    fetched = [line for line in server.asked if line.startswith("GET") and "/resolve/" in line]
    assert fetched == [f"GET /{REPO}/resolve/{COMMIT}/model.safetensors"]
    assert not left.exists()


def test_a_folder_that_cannot_be_written_to_is_named(prepare, folder):
    """The system's own words name no file where a disk is full, or as here, files may not grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200 << 10, before[1]))
    try:
        code, _, err = prepare()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    assert err.startswith(f"legato prepare: {SPEC}: cannot be kept in {folder}: [Errno 27] ")
    assert not list(folder.glob(".legato-whole"))
    assert prepare().code == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CAS service error\nsource"), "the download failed: CAS service error"),  # of hf_xet, as the next
        (PermissionError("the token is expired"), "the download failed: the token is expired"),
        (ConnectionError("no route"), "cannot reach the hub: no route"),
        (OSError(28, "No space left on device"), "cannot be kept in FOLDER: [Errno 28] No space left on device"),
    ],
)
def test_every_failure_says_what_was_asked_for(error, reason, tmp_path, monkeypatch):
    def fetch(*_: object) -> None:
        raise error

    monkeypatch.setattr(hub, "_fetch", fetch)
    with pytest.raises(hub.HubUnreachable) as raised:
        hub.download(hub.parse(SPEC), tmp_path, lambda _line: None)
    assert str(raised.value) == f"{SPEC}: {reason.replace('FOLDER', str(tmp_path))}"


REFUSED = [
    ((404, "RepoNotFound"), 2, "no such repository, or none that HF_TOKEN may read"),
    ((404, "RevisionNotFound"), 2, "the repository has no such commit"),
    (
        (403, "GatedRepo"),
        2,
        "access is restricted (request it on the hub, and set HF_TOKEN to a token of that account)",
    ),
    ((403, ""), 2, "the hub refuses HF_TOKEN (403)"),
    ((418, ""), 1, "the hub answers 418"),
]


@pytest.mark.parametrize(("refusal", "code", "reason"), REFUSED)
def test_a_refusal_ends_with_its_reason_and_a_hub_in_trouble_may_be_asked_again(refusal, code, reason, server, prepare):
    server.refusal = refusal
    assert prepare()[::2] == (code, f"legato prepare: {SPEC}: {reason}\n")
    server.refusal = None
    assert prepare().code == 0


def test_the_token_is_that_of_the_environment(prepare, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    assert prepare()[::2] == (2, f"legato prepare: {SPEC}: no such repository, or none that HF_TOKEN may read\n")


def test_a_hub_that_cannot_be_reached_may_be_asked_again(prepare, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # else it tries for half a minute
    code, _, err = prepare()
    assert code == 1
    assert err.startswith(f"legato prepare: {SPEC}: cannot reach the hub: ")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_repository_of_another_kind_is_refused(missing, server, prepare):
    del server.files[missing]
    reason = f"the repository has no {missing.replace('model.', '*.')}, which is needed"
    assert prepare()[::2] == (2, f"legato prepare: {SPEC}: {reason}\n")


def test_a_folder_of_ones_own_can_be_given_but_is_not_overwritten(prepare, tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    assert prepare("--into", own).code == 0
    assert (own / "model.safetensors").read_bytes() == WEIGHTS
    other.mkdir()
    (other / "config.json").write_text("of another model")
    ended = prepare("--into", other)
    assert ended.code == 2
    assert "already has other files" in ended.err
    assert (other / "config.json").read_text() == "of another model"
    assert "has hf:" in prepare("--into", own, commit="f" * 40).err


@pytest.mark.parametrize(
    ("repo", "commit"),
    [
        *((REPO, commit) for commit in ("main", "v1.0", COMMIT[:-1], COMMIT.upper().replace("0", "G"), "")),
        *((repo, COMMIT) for repo in ("../../etc", "owner/../other", "a/b/c", "", ".")),
    ],
)
def test_anything_but_a_commit_of_a_repository_is_refused(repo, commit, tmp_path):
    with pytest.raises(hub.HubRefuses, match=r"not a valid (revision|repository): "):
        hub.HubSnapshot(repo, commit)
    with pytest.raises(model.ModelUnavailable, match=r"not a valid (revision|repository): "):
        model.resolve(f"hf:{repo}@{commit}", lambda _line: None, {names.ENV_CACHE: str(tmp_path)})


def test_a_branch_is_refused_by_the_command(server, prepare):
    ended = prepare(commit="main")
    assert ended.code == 2
    assert "not a valid revision: main (a commit of 40 hex digits" in ended.err
    assert server.asked == []


def test_the_newest_commit_of_a_repository_is_served(server, legato):
    """`legato up OWNER/NAME` takes it, and the download is of exactly that commit."""
    code, _, err = legato("up", REPO, "--print")
    assert f"GET /api/models/{REPO}" in server.asked
    assert f"legato: {SPEC} is in " in err
    assert code == 2  # what this hub serves is not a model
    assert err.splitlines()[-1].startswith(f"legato up: model '{REPO}': ")


def test_an_adapter_is_downloaded_with_its_two_files(server, prepare, folder, tmp_path):
    """A folder with them is not taken for a model, though the repository may hold one as well."""
    server.files |= ADAPTER
    code, out, err = prepare("--adapter", "sql")
    assert (code, err) == (0, "")
    assert f"legato: downloading {SPEC}: 2 files, 1.0 MB" in out
    assert files_in(folder) == ADAPTER
    with pytest.raises(model.ModelUnavailable, match="not all of it"):
        resolve(tmp_path)
    server.asked.clear()
    assert prepare("--adapter", "law").code == 0
    assert server.asked == []
    assert prepare().code == 0
    assert resolve(tmp_path) == folder


@pytest.mark.parametrize("missing", ADAPTER)
def test_a_repository_without_an_adapter_is_refused_by_the_adapters_name(missing, server, prepare):
    server.files |= {name: content for name, content in ADAPTER.items() if name != missing}
    reason = f"adapter sql: {SPEC}: the repository has no {missing}, which is needed"
    assert prepare("--adapter", "sql")[::2] == (2, f"legato prepare: {reason}\n")


@contextlib.contextmanager
def stalled(server: Hub, cache: Path, file: str, *command: str) -> Iterator["subprocess.Popen[str]"]:
    """A command as a process, once the hub has begun to serve a file, which never arrives."""
    environ = os.environ | server.environ(cache) | {"PYTHON": sys.executable}
    with (
        server.stalling(file) as asked,
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            assert asked.wait(100)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_download_immediately_and_the_next_one_goes_on(number, server, prepare, tmp_path):
    """As a process, which is given its address by HF_ENDPOINT."""
    command = (sys.executable, "-m", "legato_cli.main", *PREPARE)
    with stalled(server, tmp_path, "model.safetensors", *command) as process:
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert prepare().code == 0


def test_a_download_ends_with_the_process_that_started_it(server, folder, tmp_path):
    """Even where that one was killed."""
    program = f'{names.ENV_PARENT}=$$ "$PYTHON" -m legato_cli.main {" ".join(PREPARE)} & wait'
    with stalled(server, tmp_path, "model.safetensors", "sh", "-c", program) as process:
        process.kill()
    until_free(folder)


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    """A manifest of a model that is a file, with an adapter of the hub."""
    (tmp_path / "m.gguf").touch()
    adapters = [
        {"name": "here", "source": {"path": "adapter"}},
        {"name": "sql", "source": {"huggingFace": {"repo": REPO, "revision": COMMIT}}},
    ]
    return local_services.write(tmp_path / "m.yaml", model={"source": {"path": "m.gguf"}, "adapters": adapters})


def test_a_manifest_whose_adapter_cannot_be_downloaded_is_not_served(legato, server, adapted):
    """The message names its field."""
    code, _, err = legato("up", "-f", adapted, "--port", 0)
    assert code == 2
    field = "spec.model.adapters.1.source.huggingFace"
    reason = "the repository has no adapter_config.json, which is needed"
    assert err.splitlines()[-1] == f"legato up: {field}: adapter sql: {SPEC}: {reason}"


def test_a_signal_ends_a_start_that_downloads_an_adapter_and_its_download(server, adapted, folder, tmp_path):
    server.files |= ADAPTER
    command = (sys.executable, "-m", "legato_cli.main", "up", "-f", str(adapted), "--port", "0")
    with stalled(server, tmp_path, "adapter_model.safetensors", *command) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stdout is not None
        assert f"legato: downloading {SPEC}: 2 files, 1.0 MB" in process.stdout.read()
    until_free(folder)


def until_free(folder: Path) -> None:
    """Waits until no process downloads to this folder any more."""
    until = time.monotonic() + 30
    with (folder / ".legato-lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                assert time.monotonic() < until, "it goes on"
                time.sleep(0.02)
