"""Files that are followed: read again only when they have changed, all of them or none."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from legato_protocol.followed_files import FollowedFiles, InvalidFile

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Looked:
    """A file that counts how often it was looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.times = 0

    def read_bytes(self) -> bytes:
        self.times += 1
        return self._path.read_bytes()

    def __str__(self) -> str:
        return self._path.name


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - of a file
            await asyncio.sleep(0.001)


async def test_what_has_not_changed_is_not_read_again_and_a_bad_pair_changes_nothing(tmp_path: Path) -> None:
    paths: Any = [Looked(tmp_path / name) for name in ("a", "b")]
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("1")
    read: list[tuple[bytes, bytes]] = []

    def equal(first: bytes, second: bytes) -> bytes:
        read.append((first, second))
        if first != second:
            raise InvalidFile("they differ")
        return first

    followed = FollowedFiles("Pairs", paths, equal, interval=0.001)
    following = asyncio.create_task(followed.follow(lambda _level, _line: None))
    await until(lambda: paths[1].times > 5)
    assert read == [(b"1", b"1")]
    (tmp_path / "a").write_text("2")
    await until(lambda: followed.problem == "a: they differ")
    assert followed.value == b"1"
    (tmp_path / "b").unlink()
    await until(lambda: followed.problem == "b: No such file or directory")
    (tmp_path / "b").write_text("2")
    await until(lambda: not followed.problem)
    assert followed.value == b"2"
    following.cancel()
