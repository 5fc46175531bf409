"""Downloads what the memory of a model follows from, or what gateways need, but no weights."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from legato_cli.models import gguf_outline, hub_content, hub_files, shard_outline
from legato_cli.models.gguf_outline import NotGguf
from legato_cli.models.hub import Progress, download, store
from legato_cli.models.hub_content import HEADER_SUFFIX, MODEL_HEADER, OUTLINE, HubContent, HubRefuses, HubSnapshot
from legato_cli.models.shard_outline import NotSafetensors, ReadRange

_CONCURRENT_READS = 8
_Write = Callable[[ReadRange, str, int], None]  # how to read a file, its path in the repository, and its bytes


def outline(snapshot: HubSnapshot, folder: Path, progress: Progress, content: HubContent) -> None:
    """Downloads to the empty `folder` the files of a model whose weights are holes of zeros.

    Scales, rotary factors and the model's header are real. `content` is MODEL or a GGUF file. Does nothing if it did so
    before. Raises HubRefuses, HubUnreachable.
    """
    if content.gguf:
        _store(snapshot, folder, hub_content.gguf_outline(content.gguf), _gguf(folder), progress)
        return
    if snapshot.complete(folder, OUTLINE):
        return
    download(snapshot, folder, progress, MODEL_HEADER)
    with ThreadPoolExecutor(_CONCURRENT_READS) as threads:

        def write(read: ReadRange, name: str, size: int) -> None:
            shard_outline.write(read, folder / name, size, threads)

        _store(snapshot, folder, OUTLINE, write, progress)


def gguf_header(snapshot: HubSnapshot, folder: Path, progress: Progress, file: str) -> None:
    """Downloads the header of a GGUF file to `folder`: a file with the suffix `.header`. Does nothing if the whole file
    is there. Raises HubRefuses, HubUnreachable."""

    def write(read: ReadRange, name: str, size: int) -> None:
        gguf_outline.write_header(read, folder / f"{name}{HEADER_SUFFIX}", size)

    content = hub_content.gguf_header(file)
    _store(snapshot, folder, content, write, progress)
    progress(f"the header of {snapshot} is in {content.path(folder)}{HEADER_SUFFIX}")


def _gguf(folder: Path) -> _Write:
    return lambda read, name, size: gguf_outline.write(read, folder / name, size)


def _store(snapshot: HubSnapshot, folder: Path, content: HubContent, write: _Write, progress: Progress) -> None:
    store(snapshot, folder, content, partial(_write_all, snapshot, content, write, progress))


def _write_all(snapshot: HubSnapshot, content: HubContent, write: _Write, progress: Progress) -> None:
    sizes = hub_files.wanted(snapshot, content)
    progress(f"reading headers and scales of {snapshot}: {len(sizes)} files")
    for name, size in sizes.items():
        try:
            write(hub_files.reader(snapshot, name), name, size)
        except (NotGguf, NotSafetensors) as error:
            raise HubRefuses(f"{snapshot}: {name}: {error}") from None
