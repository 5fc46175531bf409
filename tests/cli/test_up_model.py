"""`legato up MODEL` makes the manifest of a model; paths in any manifest begin where its file is."""

import socket

import pytest
import yaml

from legato_cli import main, model
from legato_cli.local import model_manifest, serving
from legato_operator.api import parsing
from legato_operator.errors import ManifestError

BUILTIN = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def gguf():
    return model.resolve(model.PREFIX + BUILTIN, lambda text: None)


def _printed(capsys, *words):
    assert main.main(["up", *words, "--print"]) == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.parametrize("name", [BUILTIN, model.PREFIX + BUILTIN])
def test_a_builtin_model_is_taken_by_its_name(name, capsys):
    made = _printed(capsys, name)
    assert made["spec"]["model"]["source"] == {"builtin": BUILTIN}
    assert made["spec"]["model"]["servedName"] == BUILTIN
    assert made["metadata"]["name"] == BUILTIN
    assert parsing.read_mapping(made).spec.engine.kv_cache_memory is None


def test_a_file_is_taken_by_its_path_from_here(gguf, tmp_path, monkeypatch, capsys):
    (tmp_path / "My_Model.Q4.gguf").write_bytes(gguf.read_bytes())
    monkeypatch.chdir(tmp_path)
    made = _printed(capsys, "My_Model.Q4.gguf")
    assert made["spec"]["model"]["source"] == {"path": str(tmp_path / "My_Model.Q4.gguf")}
    assert (made["metadata"]["name"], made["spec"]["model"]["servedName"]) == ("my-model-q4", "My_Model.Q4")


def test_no_longer_sequences_are_asked_for_than_the_model_has(gguf, monkeypatch):
    monkeypatch.setattr(model_manifest, "LONGEST", 1 << 20)
    assert model_manifest.of(str(gguf), lambda text: None)["spec"]["model"]["maxLength"] == 8192


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no-such-model", "no such file or folder; allowed are a GGUF file"),
        ("./no/such/file.gguf", "no such file or folder"),
        ("owner/name@main", "OWNER/NAME@COMMIT"),
        (".", "config.json"),
    ],
)
def test_what_is_no_model_ends_with_2_and_says_what_is(text, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(["up", text]) == 2
    assert said in capsys.readouterr().err


def test_a_repository_is_served_from_where_it_was_downloaded(gguf, monkeypatch):
    asked = []
    monkeypatch.setattr(model, "newest", lambda repo: "a" * 40)
    monkeypatch.setattr(model, "download", lambda repo, commit, into, progress: asked.append((repo, commit)) or gguf)
    for text in ("Owner/Tiny-1.5B", f"hf:Owner/Tiny-1.5B@{'b' * 40}"):
        made = model_manifest.of(text, lambda text: None)
        assert made["metadata"]["name"] == "tiny-1-5b"
        assert made["spec"]["model"]["source"] == {"path": str(gguf)}
    assert asked == [("Owner/Tiny-1.5B", "a" * 40), ("Owner/Tiny-1.5B", "b" * 40)]


@pytest.mark.parametrize(
    ("name", "service", "served"),
    [
        ("Qwen3-0.6B", "qwen3-0-6b", "Qwen3-0.6B"),
        ("7B model", "m-7b-model", "7B-model"),
        ("x" * 60, "x" * 40, "x" * 60),
        ("--", "m", "model"),
    ],
)
def test_any_name_becomes_one_that_is_valid(name, service, served):
    assert (model_manifest.service_name(name), model_manifest.served_name(name)) == (service, served)


def test_the_manifest_that_was_made_is_gone_in_the_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main.main(["up", BUILTIN, "--port", str(taken.getsockname()[1])]) == 2
    assert "is in use" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_model_and_a_manifest_are_not_both_taken(capsys):
    with pytest.raises(SystemExit) as stopped:
        main.main(["up", BUILTIN, "-f", "m.yaml"])
    assert stopped.value.code == main.BAD_ARGUMENTS
    assert "not allowed with" in capsys.readouterr().err


def _manifest(folder, **spec):
    path = folder / "m.yaml"
    item = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "mine"}}
    path.write_text(yaml.safe_dump(item | {"spec": {"model": {"source": {"path": "models/tiny.gguf"}}} | spec}))
    return path


def test_relative_paths_begin_at_the_manifest_wherever_legato_was_started(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    keys, tls = {"apiKeys": {"path": "keys.json"}}, {"tls": {"path": "tls"}}
    path = _manifest(folder, gateway=keys | tls, engine={"runner": "Paced", "profile": "profiles/a.json"})
    read = serving.read_manifest(path)
    assert read.service.spec.model.source.path == str(folder / "models/tiny.gguf")
    assert read.written["spec"]["model"]["source"]["path"] == str(folder / "models/tiny.gguf")
    assert read.service.spec.gateway.api_keys.path == str(folder / "keys.json")
    assert read.service.spec.gateway.tls.path == str(folder / "tls")
    assert read.service.spec.engine.profile == str(folder / "profiles/a.json")
    monkeypatch.chdir(tmp_path)
    assert serving.read_manifest(path.relative_to(tmp_path)) == read


def test_absolute_paths_and_shipped_profiles_stay_and_paths_up_are_refused(tmp_path):
    path = _manifest(tmp_path, model={"source": {"path": "/m"}}, engine={"runner": "Paced", "profile": "llama"})
    spec = serving.read_manifest(path).service.spec
    assert (spec.model.source.path, spec.engine.profile) == ("/m", "llama")
    with pytest.raises(ManifestError, match=r"must not contain \.\."):
        serving.read_manifest(_manifest(tmp_path, model={"source": {"path": "../m"}}))
