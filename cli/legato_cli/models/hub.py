"""Downloads models and adapters of the Hugging Face hub: one commit of a repository, verified, into a folder.

Modules import `huggingface_hub` only for downloads: processes that use a prepared model do not need the library.
"""

import contextlib
import fcntl
import glob
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from legato_cli.models import gguf_names, hub_content, hub_files
from legato_cli.models.gguf_names import NoChoice
from legato_cli.models.hub_content import (
    HEADER,
    LOCK,
    MODEL,
    PREFIX,
    WEIGHTS,
    HubContent,
    HubRefuses,
    HubSnapshot,
    HubUnreachable,
    mark_file,
)
from legato_cli.models.hub_errors import explained, require_library
from legato_protocol.model_files import gguf_parts
from legato_protocol.names import hub_folder

REPORT_SECONDS = 5.0
Progress = Callable[[str], None]


def download(snapshot: HubSnapshot, folder: Path, progress: Progress, content: HubContent = MODEL) -> None:
    """Downloads the files into `folder`, except those that are already complete.

    The library reads the token from `HF_TOKEN`. Processes that start together download only once. SIGINT and SIGTERM
    end the process immediately. Raises HubRefuses, HubUnreachable.
    """
    store(snapshot, folder, content, partial(_fetch, snapshot, folder, content, progress))
    progress(f"{snapshot} is in {content.path(folder)}")


def store(snapshot: HubSnapshot, folder: Path, content: HubContent, fetch: Callable[[], None]) -> None:
    """Completes `folder` by `fetch`, once for all processes, unless it is complete. Raises HubRefuses, HubUnreachable.

    No other process writes to the folder meanwhile, and no folder with other files is written to.
    """
    require_library(snapshot)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(snapshot, folder)
        with locked(folder / LOCK):
            _refuse_another(snapshot, folder)
            if not snapshot.complete(folder, content):
                with explained(snapshot), _ended_by_signals():
                    fetch()
                mark_file(folder, content.mark).write_text(str(snapshot))
    except OSError as error:
        raise HubUnreachable(f"{snapshot}: cannot be stored in {folder}: {error}") from error


def choose(snapshot: HubSnapshot, choice: str) -> HubContent:
    """Returns the content that a user asks for: the GGUF file with this name or tag or, without a choice, the model in
    safetensors, else in a GGUF file. Raises HubRefuses, HubUnreachable."""
    require_library(snapshot)
    with explained(snapshot):
        names = hub_files.sizes(snapshot)
    if not choice and (any(map(MODEL.wants_weights, names)) or not gguf_names.models(names)):
        return MODEL
    try:
        return hub_content.gguf(gguf_names.choose(names, choice))
    except NoChoice as error:
        raise HubRefuses(f"{snapshot}: {error}") from None


def newest(repo: str) -> str:
    """Returns the current commit of the repository's main branch. Raises HubRefuses, HubUnreachable."""
    snapshot = HubSnapshot(repo, "0" * 40)  # checks the name
    require_library(repo)
    with explained(f"{PREFIX}{snapshot.repo}"):
        from huggingface_hub import HfApi

        return str(HfApi().model_info(repo).sha)


def cached(repo: str, cache: Path, choice: str = "") -> Path | None:
    """Returns the model of the last complete download in our cache, or else in huggingface_hub's."""
    snapshots = [HubSnapshot(repo, folder.name) for folder in (cache / hub_folder(repo, "")).glob("[0-9a-f]" * 40)]
    models = [
        (mark_file(folder, content.mark).stat().st_mtime, content.path(folder))
        for folder, content in ((each.folder(cache), stored(each, cache, choice)) for each in snapshots)
        if content is not None
    ]
    return max(models)[1] if models else _cached_by_library(repo, choice)


def stored(snapshot: HubSnapshot, cache: Path, choice: str) -> HubContent | None:
    """Returns the content in our cache that a user asks for, or None."""
    folder = snapshot.folder(cache)
    if not choice and snapshot.complete(folder, MODEL):
        return MODEL
    try:
        return hub_content.gguf(gguf_names.choose(snapshot.gguf_files(folder), choice))
    except NoChoice:
        return None


def _cached_by_library(repo: str, choice: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = [*HEADER, *WEIGHTS, f"*{gguf_parts.SUFFIX}"]
    try:
        folder = Path(snapshot_download(repo, local_files_only=True, allow_patterns=patterns))
    except LocalEntryNotFoundError:
        return None
    if not choice and _is_whole(folder):
        return folder
    names = [str(path.relative_to(folder)) for path in folder.rglob(f"*{gguf_parts.SUFFIX}")]
    with contextlib.suppress(NoChoice):
        file = gguf_names.choose(names, choice)
        if set(gguf_parts.parts(file)) <= set(names):
            return folder / file
    return None


def _is_whole(folder: Path) -> bool:
    """True for a model with all its shards: the library also returns the remains of an interrupted download."""
    index, shards = folder / "model.safetensors.index.json", set[str]()
    if index.is_file() and not (folder / "model.safetensors").is_file():
        try:
            shards = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
    return all(any(folder.glob(pattern)) for pattern in MODEL.needed) and all(
        (folder / name).is_file() for name in shards
    )


def _fetch(snapshot: HubSnapshot, folder: Path, content: HubContent, progress: Progress) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api = HfApi()
    for left in folder.glob(".cache/huggingface/download/**/*.incomplete"):
        left.unlink()  # left by a killed process: no other one can use it
    sizes = hub_files.wanted(snapshot, content)
    progress(f"downloading {snapshot}: {len(sizes)} files, {_megabytes(sum(sizes.values()))}")
    with _reporting(folder, sum(sizes.values()), progress):
        api.snapshot_download(
            snapshot.repo,
            revision=snapshot.commit,
            local_dir=folder,
            allow_patterns=[glob.escape(name) for name in sizes],
        )
    progress(f"verifying {snapshot}")
    checked = api.verify_repo_checksums(snapshot.repo, revision=snapshot.commit, local_dir=folder)
    wrong = sizes.keys() & {*checked.missing_paths, *(mismatch["path"] for mismatch in checked.mismatches)}
    for name in wrong:
        (folder / name).unlink(missing_ok=True)
    if wrong:
        raise HubUnreachable(f"{snapshot}: these files are damaged or missing: {', '.join(sorted(wrong))}")


@contextlib.contextmanager
def _reporting(folder: Path, total: int, progress: Progress) -> Iterator[None]:
    """Reports the downloaded bytes every few seconds."""
    over = threading.Event()

    def report() -> None:
        while not over.wait(REPORT_SECONDS):
            arrived = sum(_size(file) for file in folder.rglob("*") if not file.name.endswith((".metadata", ".lock")))
            progress(f"downloaded {_megabytes(min(arrived, total))} of {_megabytes(total)}")

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ends the process on SIGINT and SIGTERM; the files that have arrived stay.

    Without it, the library's threads would finish their files, and the first process of a container would ignore
    SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> None:
    os._exit(128 + number)  # a shell's exit code for a signal


def _refuse_foreign(snapshot: HubSnapshot, folder: Path) -> None:
    """Raises HubRefuses for a folder with other files."""
    if not (folder / LOCK).exists() and {file.name for file in folder.iterdir()} - {"lost+found"}:
        raise HubRefuses(f"{snapshot}: {folder} already has other files (choose another folder)")


def _refuse_another(snapshot: HubSnapshot, folder: Path) -> None:
    """Raises HubRefuses for a folder with files of another snapshot."""
    if others := hub_content.snapshots_in(folder) - {str(snapshot)}:
        raise HubRefuses(f"{snapshot}: {folder} already has {min(others)} (choose another folder)")


def _size(file: Path) -> int:
    with contextlib.suppress(OSError):  # files are renamed meanwhile
        return file.stat().st_size if file.is_file() else 0
    return 0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file; the kernel releases it if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
