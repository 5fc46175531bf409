"""Models of the Hugging Face hub as users name them, in the cache folder or as an outline.

Raises ModelUnavailable; its subclass ModelAway when trying again may help.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from legato_cli.models import hub, hub_outline
from legato_cli.models.hub import Progress
from legato_cli.models.hub_content import HubContent, HubRefuses, HubSnapshot, HubUnreachable
from legato_cli.models.model import ModelAway, ModelUnavailable, cache_folder

_NAME = re.compile(r"(hf:)?(?P<repo>[\w.-]+/[\w.-]+)(:(?P<choice>[^:@]+))?(@(?P<commit>[0-9a-f]{40}))?")


@dataclass(frozen=True)
class HubName:
    """A repository, a choice among its GGUF files by tag or name, and a commit; empty: the newest one."""

    repo: str
    choice: str = ""
    commit: str = ""


def parse(text: str) -> HubName | None:
    """Parses `OWNER/NAME[:CHOICE][@COMMIT]`, also after `hf:`."""
    match = _NAME.fullmatch(text)
    return HubName(match["repo"], match["choice"] or "", match["commit"] or "") if match else None


def fetch(name: HubName, progress: Progress, check: Callable[[Path], None]) -> Path:
    """Downloads a model and returns its path; while the hub cannot be reached, of the last one downloaded.

    `check` gets an outline first, so that a model which it refuses is not downloaded.
    """
    with _explained():
        try:
            snapshot, content = _find(name)
        except HubUnreachable as error:
            return _earlier(name, error, progress)
        folder = snapshot.folder(cache_folder(os.environ))
        if not snapshot.complete(folder, content):
            with tempfile.TemporaryDirectory(prefix="legato-outline-") as scratch:
                hub_outline.outline(snapshot, Path(scratch), progress, content)
                check(content.path(Path(scratch)))
        hub.download(snapshot, folder, progress, content)
    return content.path(folder)


def outline(name: HubName, scratch: Path, progress: Progress) -> Path:
    """Returns the path of a model in the cache, or else of its outline in `scratch`.

    While the hub cannot be reached, the model is the last one downloaded.
    """
    with _explained():
        try:
            snapshot, content = _find(name)
        except HubUnreachable as error:
            return _earlier(name, error, progress)
        return _outline(snapshot, content, scratch, progress)


def outline_of(snapshot: HubSnapshot, content: HubContent, scratch: Path, progress: Progress) -> Path:
    """Returns the path of this content in the cache, or else of its outline in `scratch`."""
    with _explained():
        return _outline(snapshot, content, scratch, progress)


def download(
    snapshot: HubSnapshot, into: Path | None, progress: Progress, content: HubContent, header_only: bool = False
) -> None:
    """Downloads a content of a repository to `into` or the cache; of a GGUF file, on request only the header."""
    with _explained():
        folder = into or snapshot.folder(cache_folder(os.environ))
        if content.gguf and header_only:
            hub_outline.gguf_header(snapshot, folder, progress, content.gguf)
        else:
            hub.download(snapshot, folder, progress, content)


def is_downloaded(repo: str, commit: str, content: HubContent) -> bool:
    """Returns True if the cache has this content of a repository. Raises ModelUnavailable for an invalid name."""
    with _explained():
        snapshot = HubSnapshot(repo, commit)
        return snapshot.complete(snapshot.folder(cache_folder(os.environ)), content)


def _find(name: HubName) -> tuple[HubSnapshot, HubContent]:
    snapshot = HubSnapshot(name.repo, name.commit or hub.newest(name.repo))
    stored = hub.stored(snapshot, cache_folder(os.environ), name.choice)
    if stored is not None and (name.choice or not stored.gguf):
        return snapshot, stored
    try:
        return snapshot, hub.choose(snapshot, name.choice)
    except HubUnreachable:
        if stored is None:
            raise
        return snapshot, stored


def _earlier(name: HubName, error: HubUnreachable, progress: Progress) -> Path:
    """Returns the path of the last download of a repository's newest commit. Raises `error` without one."""
    path = None if name.commit else hub.cached(name.repo, cache_folder(os.environ), name.choice)
    if path is None:
        raise error
    progress(f"{error}; taking the earlier download, {path.name}")
    return path


def _outline(snapshot: HubSnapshot, content: HubContent, scratch: Path, progress: Progress) -> Path:
    folder = snapshot.folder(cache_folder(os.environ))
    if snapshot.complete(folder, content):
        return content.path(folder)
    hub_outline.outline(snapshot, scratch, progress, content)
    return content.path(scratch)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except HubRefuses as error:
        raise ModelUnavailable(str(error)) from error
    except (HubUnreachable, OSError) as error:
        raise ModelAway(str(error)) from error
