"""`legato prepare --hugging-face`, by the real huggingface_hub, from a hub of this machine."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import huggingface_hub
import local_services
import pytest
import quantized_folders
import tiny_files
import yaml
from fake_hub import COMMIT, REPO, TOKEN, WEIGHTS

from legato_cli.models import hub, hub_content, hub_model, model, shard_outline
from legato_cli.models.hub_content import HubSnapshot
from legato_cli.models.hub_model import HubName
from legato_engine.weights.opening import open_weights
from legato_protocol import names

SPEC = f"hf:{REPO}@{COMMIT}"
LEGATO = (sys.executable, "-m", "legato_cli.main")
PREPARE = ("prepare", "--hugging-face", REPO, "--revision", COMMIT)
ADAPTER = {"adapter_config.json": b'{"peft_type": "LORA"}', "adapter_model.safetensors": WEIGHTS}


@pytest.fixture
def prepare(server, legato):
    def run(*flags, commit=COMMIT):
        ended = legato("prepare", "--hugging-face", REPO, "--revision", commit, *flags)
        assert TOKEN not in ended.out + ended.err
        return ended

    return run


@pytest.fixture
def folder(tmp_path):
    return HubSnapshot(REPO, COMMIT).folder(tmp_path)


def resolve(cache, find=model.resolve, spec=SPEC):
    return find(spec, lambda _line: None, {names.ENV_CACHE: str(cache)})


def files_in(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")}


def test_a_commit_is_downloaded_once_and_found(server, prepare, folder, tmp_path):
    with pytest.raises(model.ModelUnavailable, match=f"legato prepare --hugging-face {REPO} --revision {COMMIT}"):
        resolve(tmp_path)
    code, out, err = prepare()
    assert (code, err) == (0, "")
    assert f"legato: downloading {SPEC}: 3 files, 1.0 MB" in out
    assert resolve(tmp_path) == resolve(tmp_path, model.resolve_header) == folder
    files = ("config.json", "tokenizer.json", "model.safetensors")
    assert files_in(folder) == {name: server.files[name] for name in files}
    server.asked.clear()
    assert (prepare().code, server.asked) == (0, [])


def test_gateways_need_no_weights_and_workers_are_not_given_half(prepare, folder, tmp_path):
    assert prepare("--header-only").code == 0
    assert resolve(tmp_path, model.resolve_header) == folder
    assert not (folder / "model.safetensors").exists()
    with pytest.raises(model.ModelUnavailable, match="not all of it"):
        resolve(tmp_path)
    assert prepare().code == 0
    assert resolve(tmp_path) == folder


OF_HUB = {"huggingFace": {"repo": REPO, "revision": COMMIT}}


@pytest.mark.parametrize("kind", ["fp8, channel", "gptq, act order", "awq"])
def test_a_quantized_model_is_judged_without_its_weights(kind, server, judge, tmp_path):
    quantized_folders.write(tmp_path / "m", quantized_folders.KINDS[kind])
    server.files = {"tokenizer.json": b"{}"} | {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()}
    code, out = judge(OF_HUB)
    assert (code, out) == judge({"path": str(tmp_path / "m")})
    assert "fits: weights" in out
    assert server.sent < len(server.files["model.safetensors"]) / 2


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


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CAS service error\nsource"), "the download failed: CAS service error"),  # of hf_xet, as the next
        (PermissionError("the token is expired"), "the download failed: the token is expired"),
        (ConnectionError("no route"), "cannot reach the hub: no route"),
        (OSError(28, "No space left on device"), "cannot be stored in FOLDER: [Errno 28] No space left on device"),
    ],
)
def test_every_failure_says_what_was_asked_for(error, reason, tmp_path, monkeypatch):
    def fetch(*_):
        raise error

    monkeypatch.setattr(hub, "_fetch", fetch)
    with pytest.raises(hub_content.HubUnreachable) as raised:
        hub.download(HubSnapshot(REPO, COMMIT), tmp_path, lambda _line: None)
    assert str(raised.value) == f"{SPEC}: {reason.replace('FOLDER', str(tmp_path))}"


RESTRICTED = "access is restricted (request it on the hub, and set HF_TOKEN to a token of that account)"
SQL = ("--adapter", "sql")


@pytest.mark.parametrize(
    ("change", "flags", "code", "reason"),
    [
        ((404, "RepoNotFound"), (), 2, "no such repository, or none that HF_TOKEN may read"),
        ((404, "RevisionNotFound"), (), 2, "the repository has no such commit"),
        ((403, "GatedRepo"), (), 2, RESTRICTED),
        ((403, ""), (), 2, "the hub refuses HF_TOKEN (403)"),
        ((418, ""), (), 1, "the hub answers 418"),
        ("config.json", (), 2, "the repository has no config.json, which is needed"),
        ("tokenizer.json", (), 2, "the repository has no tokenizer.json, which is needed"),
        ("model.safetensors", (), 2, "the repository has no *.safetensors, which is needed"),
        *((name, SQL, 2, f"the repository has no {name}, which is needed") for name in ADAPTER),
    ],
)
def test_a_refusal_ends_with_its_reason_and_the_hub_may_be_asked_again(change, flags, code, reason, server, prepare):
    whole = server.files | (ADAPTER if flags else {})
    if isinstance(change, str):
        server.files = {name: content for name, content in whole.items() if name != change}
    else:
        server.refusal = change
    asked = f"adapter sql: {SPEC}" if flags else SPEC
    assert prepare(*flags)[::2] == (code, f"legato prepare: {asked}: {reason}\n")
    if server.refusal:
        server.refusal = None
        assert prepare().code == 0


def test_a_folder_of_ones_own_can_be_given_but_is_not_overwritten(prepare, tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    assert prepare("--into", own).code == 0
    assert (own / "model.safetensors").read_bytes() == WEIGHTS
    other.mkdir()
    (other / "config.json").write_text("of another model")
    code, _, err = prepare("--into", other)
    assert (code, "already has other files" in err) == (2, True)
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
    with pytest.raises(hub_content.HubRefuses, match=r"not a valid (revision|repository): "):
        hub_content.HubSnapshot(repo, commit)
    with pytest.raises(model.ModelUnavailable, match=r"not a valid (revision|repository): "):
        resolve(tmp_path, spec=f"hf:{repo}@{commit}")


def test_the_newest_commit_of_a_repository_is_served_once_it_is_known_to_be_a_model(server, legato, folder, tmp_path):
    """`legato up OWNER/NAME` takes it, and the download is of exactly that commit."""
    code, _, err = legato("up", REPO, "--print")
    assert (code, "model.safetensors: it does not begin with the header of a safetensors file" in err) == (2, True)
    assert server.sent < len(WEIGHTS) / 2
    tiny_files.write_folder(tmp_path / "m")
    server.files |= {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()}
    code, out, err = legato("up", REPO, "--print")
    assert (code, f"legato: {SPEC} is in {folder}" in err) == (0, True)
    made = yaml.safe_load(out)
    assert (made["metadata"]["name"], made["spec"]["model"]["source"]) == ("tiny-model", {"path": str(folder)})


def newest(said):
    return hub_model.fetch(HubName(REPO), said.append, lambda _path: None)


def test_while_the_hub_is_away_the_last_download_is_served(server, prepare, folder, tmp_path, monkeypatch):
    """Ours, or else that of huggingface_hub's own cache; other refusals are not overruled."""
    said = []
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "theirs"))
    theirs = tmp_path / "theirs" / f"models--{REPO.replace('/', '--')}"
    snapshot = theirs / "snapshots" / ("f" * 40)
    monkeypatch.setattr(server, "refusal", (503, ""))
    with pytest.raises(model.ModelAway, match="the hub answers 503"):
        newest(said)
    for name in ("config.json", "tokenizer.json", "model-1-of-2.safetensors"):
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(server.files.get(name, WEIGHTS))
    (theirs / "refs").mkdir()
    (theirs / "refs" / "main").write_text(snapshot.name)
    shards = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(model.ModelAway, match="the hub answers 503"):
        newest(said)
    (snapshot / "model-2-of-2.safetensors").write_bytes(WEIGHTS)
    assert newest(said) == snapshot
    server.refusal = None
    assert prepare().code == 0
    server.refusal = (503, "")
    assert newest(said) == folder
    assert said[-1] == f"hf:{REPO}: the hub answers 503; taking the earlier download, {COMMIT}"
    server.refusal = (403, "")
    with pytest.raises(model.ModelUnavailable, match="refuses HF_TOKEN"):
        newest(said)


def test_an_adapter_is_downloaded_with_its_two_files(server, prepare, folder, tmp_path):
    """A folder with them is not taken for a model, though the repository may have one as well."""
    server.files |= ADAPTER
    code, out, err = prepare(*SQL)
    assert (code, err) == (0, "")
    assert f"legato: downloading {SPEC}: 2 files, 1.0 MB" in out
    assert files_in(folder) == ADAPTER
    with pytest.raises(model.ModelUnavailable, match="not all of it"):
        resolve(tmp_path)
    server.asked.clear()
    assert (prepare("--adapter", "law").code, server.asked) == (0, [])
    assert prepare().code == 0
    assert resolve(tmp_path) == folder


@contextlib.contextmanager
def stalled(server, cache, file, *command):
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
    with stalled(server, tmp_path, "model.safetensors", *LEGATO, *PREPARE) as process:
        process.send_signal(number)
        assert process.wait(90) == 128 + number
    assert prepare().code == 0


def test_a_download_ends_with_the_process_that_started_it(server, folder, tmp_path):
    program = f'{names.ENV_PARENT}=$$ "$PYTHON" -m legato_cli.main {" ".join(PREPARE)} & wait'
    with stalled(server, tmp_path, "model.safetensors", "sh", "-c", program) as process:
        process.kill()
    until_free(folder)


@pytest.fixture
def adapted(tmp_path):
    """A manifest of a model that is a file, with an adapter of the hub."""
    (tmp_path / "m.gguf").touch()
    adapters = [
        {"name": "here", "source": {"path": "adapter"}},
        {"name": "sql", "source": {"huggingFace": {"repo": REPO, "revision": COMMIT}}},
    ]
    return local_services.write(tmp_path / "m.yaml", model={"source": {"path": "m.gguf"}, "adapters": adapters})


def test_a_manifest_whose_adapter_cannot_be_downloaded_is_not_served(legato, server, adapted):
    code, _, err = legato("up", "-f", adapted, "--port", 0)
    reason = "the repository has no adapter_config.json, which is needed"
    said = f"legato up: spec.model.adapters.1.source.huggingFace: adapter sql: {SPEC}: {reason}"
    assert (code, err.splitlines()[-1]) == (2, said)


def until_free(folder):
    """Waits until processes no longer download to this folder."""
    until = time.monotonic() + 90
    with (folder / ".legato-lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                assert time.monotonic() < until, "it goes on"
                time.sleep(0.02)


def test_weights_of_experts_in_one_tensor_are_holes_of_an_outline(tmp_path):
    quantized_folders.write_gpt_oss(tmp_path)
    file, reads = tmp_path / "model.safetensors", []
    expected = {name: open_weights(tmp_path).packed_bits(name) for name in open_weights(tmp_path).quantized()}
    whole = file.read_bytes()

    def read(begin, end):
        reads.append(end - begin)
        return whole[begin:end]

    with ThreadPoolExecutor(1) as threads:
        shard_outline.write(read, file, len(whole), threads)

    checkpoint = open_weights(tmp_path)
    assert {name: checkpoint.packed_bits(name) for name in checkpoint.quantized()} == expected
    assert sum(reads) < len(whole) / 4
    assert not any(checkpoint.tensor(name).any() for name in expected)
