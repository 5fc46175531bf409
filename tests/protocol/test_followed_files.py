"""Followed files: read again only when they have changed, all of them or none; internal TLS and adapters among them."""

import asyncio
import logging

import pytest
from waiting import until

from legato_protocol import names
from legato_protocol.model_files import adapter_list
from legato_protocol.model_files.adapter_file import AdapterFile
from legato_protocol.model_files.adapter_list import AdapterEntry, AdapterList, InvalidList
from legato_protocol.process.followed_files import FollowedFiles, InvalidFile
from legato_protocol.security.tls_files import InternalTLS, client_context

ENTRIES = (AdapterEntry("sql", "/adapters/sql"), AdapterEntry("team/law", "/adapters/law", 8))


class Watched:
    """A file that counts how often it was read."""

    def __init__(self, path):
        self._path = path
        self.times = 0

    def read_bytes(self):
        self.times += 1
        return self._path.read_bytes()

    def __str__(self):
        return self._path.name


async def test_what_has_not_changed_is_not_read_again_and_a_bad_pair_changes_nothing(tmp_path):
    paths = [Watched(tmp_path / name) for name in ("a", "b")]
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("1")
    read = []

    def equal(first, second):
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


# internal TLS


async def test_an_authority_that_cannot_be_read_is_reported_and_the_next_is_taken(files, tmp_path):
    files.install(tmp_path)
    authority = tmp_path / names.TLS_AUTHORITY
    good = "# Autorité de la société\n".encode() + authority.read_bytes() + b"\xff\n"
    authority.write_bytes(good)
    followed = InternalTLS(tmp_path, interval=0.001)
    assert len(followed.value.client.get_ca_certs()) == 1
    following = asyncio.create_task(followed.follow(lambda _level, _line: None))
    for wrong in (b"\xe9\xff", good.replace(b"\nM", b"\n\xe9", 1)):
        before = followed.value
        authority.write_bytes(wrong)
        await until(lambda: following.done() or followed.problem)
        assert str(authority) in followed.problem
        assert followed.value is before
        authority.write_bytes(good)
        await until(lambda: following.done() or not followed.problem)
        assert not following.done()
        assert followed.value is not before
    following.cancel()


def test_other_letters_than_those_of_pem_are_refused():
    with pytest.raises(InvalidFile, match="no certificates in PEM: they have bytes that are not ASCII"):
        client_context("café")


# lists of adapters


def test_a_list_that_is_written_is_read():
    text = adapter_list.text(ENTRIES)
    assert '"maxRank":8' in text
    found = adapter_list.read(text.encode())
    assert (found.entries, found.names) == (ENTRIES, ("sql", "team/law"))
    assert found.id != adapter_list.read(adapter_list.text(ENTRIES[:1]).encode()).id


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[", "not a list of adapters"),
        (b'{"name": "a"}', "not a list of adapters"),
        (b'[{"name": "a"}]', "path"),
        (b'[{"name": "a", "path": "\xff"}]', "not a list of adapters"),
        (b'[{"name": "a", "path": "b"}, {"name": "a", "path": "c"}]', "a is listed more than once"),
    ],
)
def test_what_is_not_a_list_is_refused(content, problem):
    with pytest.raises(InvalidList, match=problem):
        adapter_list.read(content)


async def test_a_list_may_come_later_and_each_problem_is_logged_once(tmp_path):
    path, heard = tmp_path / "adapters.json", asyncio.Queue()
    file = AdapterFile(path, interval=0.001)
    assert file.value == AdapterList()

    def log(level, line):
        heard.put_nowait(f"{level} {line}")

    following = asyncio.create_task(file.follow_changes(log, lambda: heard.put_nowait(" ".join(file.value.names))))
    good = f"{logging.INFO} adapters are read again from {path}"
    bad = f"{logging.ERROR} adapters stay as they were: {path}: "

    async def hears(content, *expected):
        if content is not None:
            path.with_suffix(".new").write_text(content)
            path.with_suffix(".new").replace(path)
        for each in expected:
            assert (await asyncio.wait_for(heard.get(), 60)).startswith(each)

    await hears(None, f"{bad}No such file or directory")
    await hears(adapter_list.text(ENTRIES), good, "sql team/law")
    await hears("[", f"{bad}not a list of adapters")
    await file.reload_later(log)
    await file.reload_later(log)
    assert (heard.empty(), file.value.names) == (True, ("sql", "team/law"))
    await hears(adapter_list.text(ENTRIES[:1]), good, "sql")
    following.cancel()
