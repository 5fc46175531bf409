"""`legato up MODEL` makes the manifest of a model; paths in any manifest begin where its file is."""

import socket

import local_services
import pytest
import yaml
from local_services import BUILTIN

from legato_cli import model
from legato_cli.local import model_manifest, serving
from legato_operator.api import parsing
from legato_operator.errors import ManifestError

HEADER = model.BUILTINS[0].header_size


@pytest.fixture(scope="module")
def gguf():
    return model.resolve(model.PREFIX + BUILTIN, lambda text: None)


@pytest.fixture
def printed(legato):
    """The manifest of a model, as it is printed."""

    def run(name):
        code, out, _ = legato("up", name, "--print")
        assert code == 0
        return yaml.safe_load(out)

    return run


@pytest.mark.parametrize("name", [BUILTIN, model.PREFIX + BUILTIN])
def test_a_builtin_model_is_taken_by_its_name(name, printed):
    made = printed(name)
    assert made["spec"]["model"]["source"] == {"builtin": BUILTIN}
    assert made["spec"]["model"]["servedName"] == made["metadata"]["name"] == BUILTIN
    assert parsing.read_mapping(made).spec.engine.kv_cache_memory is None


def test_a_file_is_taken_by_its_path_from_here(gguf, tmp_path, monkeypatch, printed):
    with (tmp_path / "My_Model.Q4.gguf").open("wb") as file:  # of its weights, nothing is read
        file.write(gguf.read_bytes()[:HEADER])
        file.truncate(gguf.stat().st_size)
    monkeypatch.chdir(tmp_path)
    made = printed("My_Model.Q4.gguf")
    assert made["spec"]["model"]["source"] == {"path": str(tmp_path / "My_Model.Q4.gguf")}
    assert (made["metadata"]["name"], made["spec"]["model"]["servedName"]) == ("my-model-q4", "My_Model.Q4")


def test_sequences_are_at_most_as_long_as_the_model_allows(gguf, monkeypatch):
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
def test_anything_but_a_model_ends_with_2_and_says_what_is_allowed(text, said, tmp_path, monkeypatch, legato):
    monkeypatch.chdir(tmp_path)
    code, _, err = legato("up", text)
    assert code == 2
    assert said in err


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


def test_a_port_that_is_taken_ends_with_2_and_the_manifest_that_was_made_is_gone_in_the_end(
    tmp_path, monkeypatch, legato
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = legato("up", BUILTIN, "--port", port)
    assert code == 2
    assert f"port {port} is in use" in err
    assert not list(tmp_path.iterdir())


def test_a_model_and_a_manifest_are_not_both_taken(legato):
    code, _, err = legato("up", BUILTIN, "-f", "m.yaml")
    assert code == 2
    assert "not allowed with" in err


def test_relative_paths_begin_at_the_manifest_wherever_legato_was_started(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    path = local_services.write(
        folder / "m.yaml",
        model={"source": {"path": "models/tiny.gguf"}},
        gateway={"apiKeys": {"path": "keys.json"}, "tls": {"path": "tls"}},
        engine={"runner": "Paced", "profile": "profiles/a.json"},
    )
    read = serving.read_manifest(path)
    spec = read.service.spec
    assert spec.model.source.path == str(folder / "models/tiny.gguf")
    assert read.written["spec"]["model"]["source"]["path"] == str(folder / "models/tiny.gguf")
    assert spec.gateway.api_keys.path == str(folder / "keys.json")
    assert spec.gateway.tls.path == str(folder / "tls")
    assert spec.engine.profile == str(folder / "profiles/a.json")
    monkeypatch.chdir(tmp_path)
    assert serving.read_manifest(path.relative_to(tmp_path)) == read


def test_absolute_paths_and_shipped_profiles_stay_and_paths_up_are_refused(tmp_path):
    model, engine = {"source": {"path": "/m"}}, {"runner": "Paced", "profile": "llama"}
    spec = serving.read_manifest(local_services.write(tmp_path / "m.yaml", model=model, engine=engine)).service.spec
    assert (spec.model.source.path, spec.engine.profile) == ("/m", "llama")
    with pytest.raises(ManifestError, match=r"must not contain \.\."):
        serving.read_manifest(local_services.write(tmp_path / "m.yaml", model={"source": {"path": "../m"}}))
