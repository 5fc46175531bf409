"""Files of KV blocks: found again, verified, and given up where they are not what they should be."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from readiness import wait_readable

from legato_engine.core.disk.block_folder import BadFile, BlockFolder
from legato_engine.core.disk.disk_thread import DiskThread
from legato_engine.errors import StartFailed
from legato_engine.kvcache.disk_tier import ReadBlock, RemoveBlock, WriteBlock
from legato_engine.kvcache.moves import Content

REVISION, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
SIZE = 1000
FIRST = Content(b"a" * 16, None, 0)
SECOND = Content(b"b" * 16, FIRST.block_hash, 0)
WINDOW = Content(b"b" * 16, FIRST.block_hash, 1)


def opened(path: Path, revision: str = REVISION) -> BlockFolder:
    return BlockFolder.open(path, revision, SIZE)


def block(value: int) -> memoryview:
    return memoryview(bytearray([value]) * SIZE)


def closed(folder: BlockFolder) -> None:
    """Closes what the kernel closes when its process ends."""
    os.close(folder._lock)


def filled(path: Path) -> BlockFolder:
    folder = opened(path)
    for value, content in enumerate((FIRST, SECOND, WINDOW), 1):
        folder.write(content, block(value))
        os.utime(next(folder.folder.glob(f"{content.group}-{content.block_hash.hex()}-*")), (value, value))
    return folder


def test_a_later_worker_finds_all_blocks_and_the_order_of_their_use(tmp_path):
    folder = filled(tmp_path)
    folder.read(FIRST, block(0))
    closed(folder)
    again, target = opened(tmp_path), block(0)
    assert again.contents() == [SECOND, WINDOW, FIRST]
    again.read(WINDOW, target)
    assert target == block(3)
    again.remove(WINDOW)
    again.remove(WINDOW)
    assert again.contents() == [SECOND, FIRST]


def test_two_workers_have_folders_of_their_own_and_keep_each_others(tmp_path):
    first, second = filled(tmp_path), opened(tmp_path)
    assert second.contents() == []
    closed(first)
    assert opened(tmp_path).contents() == [FIRST, SECOND, WINDOW]


def test_files_of_another_revision_are_removed_and_counted_unless_a_worker_uses_them(tmp_path):
    (tmp_path / "theirs").mkdir()
    used = filled(tmp_path)
    assert opened(tmp_path, OTHER).refused == 0
    closed(used)
    assert opened(tmp_path, OTHER).refused == 3
    assert not (tmp_path / REVISION).exists()
    assert (tmp_path / "theirs").exists(), "only folders of workers are removed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "length"),
        (lambda data: data + b"x", "length"),
        (lambda data: data[:20], "length"),
        (lambda data: b"x" + data[1:], "another block"),
        (lambda data: data[:8] + b"c" * 16 + data[24:], "another block"),
        (lambda data: data[:-1] + b"x", "checksum"),
    ],
    ids=["truncated", "longer", "without a block", "magic", "hash", "damaged"],
)
def test_a_file_that_is_not_the_block_is_refused(tmp_path, change, message):
    folder = filled(tmp_path)
    (path,) = folder.folder.glob(f"0-{SECOND.block_hash.hex()}-*")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadFile, match=message):
        folder.read(SECOND, block(0))
    if message == "length":
        assert folder.contents() == [FIRST, WINDOW]
        assert folder.refused == 1


@pytest.mark.parametrize("put", [Path.mkdir, lambda path: path.symlink_to("nowhere"), os.mkfifo])
def test_whatever_else_has_the_name_of_a_block_is_removed_at_start(tmp_path, put):
    folder = filled(tmp_path)
    (path,) = folder.folder.glob(f"0-{SECOND.block_hash.hex()}-*")
    path.unlink()
    put(path)
    assert folder.contents() == [FIRST, WINDOW]
    assert folder.refused == 1


def test_a_folder_that_cannot_be_read_ends_the_start_by_name(tmp_path, monkeypatch):
    def broken(path):
        raise OSError(errno.EIO, "Input/output error")

    folder = opened(tmp_path)
    monkeypatch.setattr(os, "scandir", broken)
    with pytest.raises(StartFailed, match=r"diskKV.path .*: Input/output error"):
        folder.contents()


def test_a_folder_that_another_revision_removes_while_it_is_locked_is_made_again(tmp_path, monkeypatch):
    lock, used = fcntl.flock, tmp_path / REVISION / "0"

    def removed_first(descriptor, operation):
        monkeypatch.undo()
        closed(opened(tmp_path, OTHER))
        assert not used.exists()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    folder = opened(tmp_path)
    folder.write(FIRST, block(1))
    assert folder.contents() == [FIRST]
    assert opened(tmp_path).folder != folder.folder, "the folder is locked"


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    folder = opened(tmp_path)

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        folder.write(FIRST, block(1))
    monkeypatch.undo()
    assert [entry.name for entry in folder.folder.iterdir()] == ["lock"]


def test_a_path_that_cannot_be_a_folder_ends_the_start_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartFailed, match=r"diskKV.path .*file: Not a directory"):
        opened(tmp_path / "file")


def test_orders_are_carried_out_in_turn_once_the_device_is_done(tmp_path):
    class Event:
        polls = 0

        def done(self):
            self.polls += 1
            return self.polls > 2

    slots, event = [block(7), block(0), block(0)], Event()
    thread = DiskThread(opened(tmp_path), slots.__getitem__)
    missing = ReadBlock(2, SECOND)
    orders = [WriteBlock(0, FIRST), ReadBlock(1, FIRST), RemoveBlock(FIRST), missing]
    thread.submit(orders, event)
    outcomes = []
    while len(outcomes) < 3:
        wait_readable([thread], 10)
        outcomes += thread.take()
    assert [outcome.order for outcome in outcomes] == [*orders[:2], missing]
    assert [bool(outcome.error) for outcome in outcomes] == [False, False, True]
    assert "cannot be read: [Errno 2]" in outcomes[2].error
    assert slots[1] == block(7)
    assert event.polls == 3
