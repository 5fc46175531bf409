"""Downloads models and adapters of the Hugging Face hub: one commit of a repository, verified, into a folder.

The only module that uses `huggingface_hub`, which it imports only for downloads: processes that use a prepared model do
not need the library.
"""

import contextlib
import fcntl
import glob
import importlib.util
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from legato_cli.models import shard_outline
from legato_cli.models.hub_content import (
    HEADER,
    MARKS,
    MODEL,
    MODEL_HEADER,
    OUTLINE,
    PREFIX,
    WEIGHTS,
    HubContent,
    HubRefuses,
    HubSnapshot,
    HubUnreachable,
    mark_file,
    marked,
)
from legato_cli.models.shard_outline import NotSafetensors
from legato_protocol.names import hub_folder

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MORE_TEMPLATES = (
    "additional_chat_templates/*.jinja"  # the only files outside of the repository's top folder that are used
)
IGNORED = ("consolidated*",)  # another format of the same weights
REPORT_SECONDS = 5.0
_LOCK = ".legato-lock"
_CONCURRENT_READS = 8
Progress = Callable[[str], None]


def download(snapshot: HubSnapshot, folder: Path, progress: Progress, content: HubContent = MODEL) -> None:
    """Downloads the files into `folder`, except those that are already complete.

    The library reads the token from `HF_TOKEN`. Processes that start together download only once. SIGINT and SIGTERM
    end the process immediately. Raises HubRefuses, HubUnreachable.
    """
    _require_library(snapshot)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(snapshot, folder)
        with locked(folder / _LOCK):
            _refuse_another(snapshot, folder)
            if not snapshot.complete(folder, content):
                with _explained(snapshot), _ended_by_signals():
                    _fetch(snapshot, folder, content.patterns, progress)
                _require(snapshot, folder, content)
                mark_file(folder, content.mark).write_text(str(snapshot))
    except OSError as error:
        raise HubUnreachable(f"{snapshot}: cannot be stored in {folder}: {error}") from error
    progress(f"{snapshot} is in {folder}")


def outline(snapshot: HubSnapshot, folder: Path, progress: Progress) -> None:
    """Downloads into the empty `folder` what the memory of a model follows from: its header, and shards whose weights
    are holes of zeros. Scales and other tensors are real. Does nothing if it did so before.

    Raises HubRefuses, HubUnreachable.
    """
    if snapshot.complete(folder, OUTLINE):
        return
    download(snapshot, folder, progress, MODEL_HEADER)
    with _explained(snapshot), ThreadPoolExecutor(_CONCURRENT_READS) as threads:
        from huggingface_hub import HfApi

        api = HfApi()
        sizes = _sizes(api, snapshot, WEIGHTS)
        progress(f"reading headers and scales of {snapshot}: {len(sizes)} files")
        try:
            for name, size in sizes.items():
                shard_outline.write(partial(_read_range, api, snapshot, name), folder / name, size, threads)
        except NotSafetensors as error:
            raise HubRefuses(str(error)) from None
    _require(snapshot, folder, OUTLINE)
    mark_file(folder, OUTLINE.mark).write_text(str(snapshot))


def newest(repo: str) -> str:
    """Returns the current commit of the repository's main branch. Raises HubRefuses, HubUnreachable."""
    snapshot = HubSnapshot(repo, "0" * 40)  # checks the name
    _require_library(repo)
    with _explained(f"{PREFIX}{snapshot.repo}"):
        from huggingface_hub import HfApi

        return str(HfApi().model_info(repo).sha)


def cached(repo: str, cache: Path) -> Path | None:
    """Returns the folder of the last complete download in our cache, or else in huggingface_hub's."""
    snapshots = [HubSnapshot(repo, folder.name) for folder in (cache / hub_folder(repo, "")).glob("[0-9a-f]" * 40)]
    whole = [each.folder(cache) for each in snapshots if each.complete(each.folder(cache), MODEL)]
    if whole:
        return max(whole, key=lambda folder: mark_file(folder, MODEL.mark).stat().st_mtime)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo, local_files_only=True, allow_patterns=list(HEADER + WEIGHTS)))
    except LocalEntryNotFoundError:
        return None
    return folder if _is_whole(folder) else None


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


def _require_library(about: object) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise HubRefuses(
            f"{about}: downloads need the package huggingface_hub, which legato[engine] and legato[gateway] install"
        )


def _fetch(snapshot: HubSnapshot, folder: Path, patterns: tuple[str, ...], progress: Progress) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api = HfApi()
    for left in folder.glob(".cache/huggingface/download/**/*.incomplete"):
        left.unlink()  # left by a killed process: no other one can use it
    sizes = _sizes(api, snapshot, patterns)
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


def _read_range(api: "HfApi", snapshot: HubSnapshot, name: str, begin: int, end: int) -> bytes:
    """Reads these bytes of a file. Raises HubUnreachable if the hub answers with another part."""
    from huggingface_hub import constants, get_session, hf_hub_url, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, not in __all__

    url = hf_hub_url(snapshot.repo, name, revision=snapshot.commit, endpoint=api.endpoint)
    headers = build_hf_headers() | {"range": f"bytes={begin}-{end - 1}"}
    response = get_session().get(url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    hf_raise_for_status(response)
    if len(response.content) != end - begin:
        raise HubUnreachable(f"{snapshot}: {name}: the hub does not answer with the part that was requested")
    return response.content


def _sizes(api: "HfApi", snapshot: HubSnapshot, patterns: tuple[str, ...]) -> dict[str, int]:
    """Returns the wanted files with their bytes."""
    from huggingface_hub.hf_api import RepoFile

    listed = api.list_repo_tree(snapshot.repo, revision=snapshot.commit, recursive=True)
    files = {entry.path: entry.size for entry in listed if isinstance(entry, RepoFile)}
    return {name: size for name, size in files.items() if _is_wanted(name, patterns)}


def _is_wanted(name: str, patterns: tuple[str, ...]) -> bool:
    is_in_place = "/" not in name or fnmatch(name, MORE_TEMPLATES)
    return is_in_place and _any(name, patterns) and not _any(name, IGNORED)


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


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


@contextlib.contextmanager
def _explained(snapshot: object) -> Iterator[None]:
    """Maps the library's errors to this module's."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise HubRefuses(
            f"{snapshot}: access is restricted (request it on the hub, and set HF_TOKEN to a token of that account)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubRefuses(f"{snapshot}: no such repository, or none that HF_TOKEN may read") from error
    except errors.RevisionNotFoundError as error:
        raise HubRefuses(f"{snapshot}: the repository has no such commit") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise HubRefuses(f"{snapshot}: the hub refuses HF_TOKEN ({status})") from error
        raise HubUnreachable(f"{snapshot}: the hub answers {status}") from error
    except (errors.EntryNotFoundError, ConnectionError, TimeoutError, httpx2.HTTPError) as error:
        raise HubUnreachable(f"{snapshot}: cannot reach the hub: {_first_line(error)}") from error
    except errors.HFValidationError as error:
        raise HubRefuses(f"{snapshot}: {_first_line(error)}") from error
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of this machine, neither of the library nor of its storage hf_xet
        raise HubUnreachable(f"{snapshot}: the download failed: {_first_line(error)}") from error


def _require(snapshot: HubSnapshot, folder: Path, content: HubContent) -> None:
    for pattern in content.needed:
        if not any(folder.glob(pattern)):
            raise HubRefuses(f"{snapshot}: the repository has no {pattern}, which is needed")


def _refuse_foreign(snapshot: HubSnapshot, folder: Path) -> None:
    """Raises HubRefuses for a folder with other files."""
    if not (folder / _LOCK).exists() and {file.name for file in folder.iterdir()} - {"lost+found"}:
        raise HubRefuses(f"{snapshot}: {folder} already has other files (choose another folder)")


def _refuse_another(snapshot: HubSnapshot, folder: Path) -> None:
    for mark in MARKS:
        present = marked(folder, mark)
        if present not in ("", str(snapshot)):
            raise HubRefuses(f"{snapshot}: {folder} already has {present} (choose another folder)")


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


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
