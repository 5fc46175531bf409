"""GGUF files in repositories of the Hugging Face hub: chosen, judged, downloaded."""

import re

import pytest
import tiny_files
import yaml
from fake_hub import COMMIT, REPO
from gguf import GGMLQuantizationType as Type

from legato_cli.models import gguf_names, gguf_outline, model
from legato_cli.models.hub_content import HubSnapshot

SPEC = f"hf:{REPO}:Q8/m-Q8_0.gguf@{COMMIT}"
PREPARE = ("prepare", "--hugging-face", REPO, "--revision", COMMIT)
SPLIT = [f"m-F32-0000{part}-of-00003.gguf" for part in (1, 2, 3)]


@pytest.fixture
def folder(tmp_path):
    return HubSnapshot(REPO, COMMIT).folder(tmp_path)


@pytest.fixture
def files(server, tmp_path, monkeypatch):
    """GGUF files in the repository, one in a folder and one in three parts, but no other weights."""
    monkeypatch.setattr(gguf_outline, "_FIRST_READ", 100)
    (tmp_path / "here" / "Q8").mkdir(parents=True)
    tensors = tiny_files.tiny(Type.F32)
    tiny_files.write_gguf(tmp_path / "here" / "m-Q4_K_M.gguf", tensors)
    tiny_files.write_gguf(tmp_path / "here" / "Q8" / "m-Q8_0.gguf", tiny_files.tiny(Type.Q8_0))
    tiny_files.write_gguf(tmp_path / "here" / "m-F32.gguf", tensors, split=8)
    made = {str(file.relative_to(tmp_path / "here")): file for file in (tmp_path / "here").rglob("*.gguf")}
    server.files = {"config.json": b"{}", "mmproj-Q8_0.gguf": b"", "imatrix.gguf": b""}
    server.files |= {name: file.read_bytes() for name, file in made.items()}
    return made


def downloaded(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("[!.]*.gguf*") if ".cache" not in file.parts}


@pytest.mark.parametrize(
    ("choice", "file", "served"),
    [
        ("", ["m-Q4_K_M.gguf"], "m-Q4_K_M"),
        (":q8_0", ["Q8/m-Q8_0.gguf"], "m-Q8_0"),
        (f":Q8/m-Q8_0.gguf@{COMMIT}", ["Q8/m-Q8_0.gguf"], "m-Q8_0"),
        (":F32", SPLIT, "m-F32"),
    ],
)
def test_only_the_chosen_file_is_downloaded_and_while_the_hub_is_away_served_again(
    choice, file, served, server, files, folder, legato
):
    code, out, _ = legato("up", REPO + choice, "--print")
    made = yaml.safe_load(out)
    assert (code, made["spec"]["model"]["source"]) == (0, {"path": str(folder / file[0])})
    assert (made["spec"]["model"]["servedName"], downloaded(folder)) == (served, set(file))
    server.refusal = (503, "")
    assert legato("up", REPO + choice, "--print")[:2] == (0, out)
    assert "no file or folder 'models/other' here" in legato("up", "models/other", "--print")[2]


FILES = f"Q8/m-Q8_0.gguf, {SPLIT[0]}, m-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"up {REPO}:Q5_K_M", f"no GGUF file Q5_K_M; allowed are the names and tags of {FILES}"),
        (f"up {REPO}:m-Q8_0.gguf", "no GGUF file m-Q8_0.gguf"),
        (f"up {REPO}:m", f"several GGUF files match m: {FILES}; choose one by its name"),
        ("--file ../m.gguf", "not a valid file: ../m.gguf"),
        ("--file m-Q9.gguf", f"the repository has no m-Q9.gguf; its GGUF files are {FILES}"),
        ("--file m-Q9.gguf --header-only", f"the repository has no m-Q9.gguf; its GGUF files are {FILES}"),
        (
            "",
            f"the repository has no tokenizer.json, which is needed; to serve one of its GGUF files, name it: {FILES}",
        ),
        (f"up {REPO}:IQ", "tensor token_embd.weight has type IQ4_NL; supported: F32, "),
        ("--file m-IQ.gguf --header-only", ""),
        ("--file bad.gguf --header-only", "bad.gguf: ends within its header: truncated at 30 bytes"),
    ],
)
def test_what_cannot_be_served_is_refused_before_it_is_downloaded(command, reason, server, files, folder, legato):
    if "IQ" in command or "bad" in command:
        content = server.files["m-Q4_K_M.gguf"]
        at = content.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 2 * 8
        server.files["m-IQ.gguf"] = content[:at] + bytes([20, 0, 0, 0]) + content[at + 4 :]
        server.files["bad.gguf"] = content[:30]
    words = command.split() if command.startswith("up") else (*PREPARE, *command.split())
    code, _, err = legato(*words)
    assert (code, reason in err) == (2 if reason else 0, True), err
    assert not any(name.endswith(".gguf") for name in downloaded(folder))


def test_gateways_get_the_header_and_workers_the_file(server, files, folder, tmp_path, legato):
    assert legato(*PREPARE, "--file", "Q8/m-Q8_0.gguf", "--header-only").code == 0
    assert downloaded(folder) == {"Q8/m-Q8_0.gguf.header"}
    whole = folder / "Q8" / "m-Q8_0.gguf"
    beginning = folder / "Q8" / "m-Q8_0.gguf.header"
    for spec in (SPEC, str(whole)):
        assert model.resolve_header(spec, print, {"LEGATO_CACHE": str(tmp_path)}) == beginning
        with pytest.raises(model.ModelUnavailable, match=r"not all of it; .* --file Q8/m-Q8_0\.gguf|no such file"):
            model.resolve(spec, print, {"LEGATO_CACHE": str(tmp_path)})
    assert legato(*PREPARE, "--file", "Q8/m-Q8_0.gguf").code == 0
    for spec in (SPEC, str(whole)):
        for resolve in (model.resolve_header, model.resolve):
            assert resolve(spec, print, {"LEGATO_CACHE": str(tmp_path)}) == whole
    server.asked.clear()
    assert legato(*PREPARE, "--file", "Q8/m-Q8_0.gguf", "--header-only").code == 0
    assert server.asked == []


@pytest.mark.parametrize("name", ["m-Q4_K_M.gguf", SPLIT[0]])
def test_a_model_is_judged_by_its_header(name, server, files, folder, judge, legato):
    source = {"huggingFace": {"repo": REPO, "revision": COMMIT, "file": name}}
    expected = judge({"path": str(files[name])})
    assert judge(source) == expected
    assert "fits: weights" in expected[1]
    by_name, by_path = legato("doctor", f"{REPO}:{name}"), legato("doctor", files[name])
    for judged in (by_name, by_path):
        assert re.match(r"Memory\n  decode +fits: weights [35] MiB, workspace", judged.out)
    assert not downloaded(folder)
    assert server.sent < sum(len(content) for content in server.files.values()) / 2


def test_names_with_a_tag_within_a_longer_one_are_other_files():
    names = ["a-Q4_K.gguf", "a-Q4_K_M.gguf", "a-UD-Q4_K_XL.gguf", "q4_k_s/a-00001-of-00002.gguf", "a-Q3.txt"]
    for choice in ("q4_k", "UD-Q4_K_XL", "Q4_K_S", "Q4_K_M", ""):
        wanted = {"q4_k": names[0], "UD-Q4_K_XL": names[2], "Q4_K_S": names[3]}.get(choice, names[1])
        assert gguf_names.choose(names, choice) == wanted
    assert gguf_names.choose(["only.gguf"]) == "only.gguf"
    with pytest.raises(gguf_names.NoChoice, match=r"none tagged Q4_K_M: a, b; |a\.gguf, b\.gguf"):
        gguf_names.choose(["b.gguf", "a.gguf"])
