"""The file with a service's adapters: what it may hold, and how it is followed."""

import asyncio
import logging

import pytest

from legato_protocol import adapter_list
from legato_protocol.adapter_file import AdapterFile
from legato_protocol.adapter_list import AdapterEntry, AdapterList, InvalidList

ENTRIES = (AdapterEntry("sql", "/adapters/sql"), AdapterEntry("team/law", "/adapters/law", 8))


def test_what_is_written_is_read():
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
def test_what_is_no_list_is_refused(content, problem):
    with pytest.raises(InvalidList, match=problem):
        adapter_list.read(content)


def test_a_file_may_come_later_and_a_bad_one_changes_nothing(tmp_path):
    path = tmp_path / "adapters.json"

    async def follow():
        file, heard = AdapterFile(path, interval=0.001), asyncio.Queue()
        assert file.value == AdapterList()
        following = asyncio.create_task(
            file.follow_changes(lambda level, _: heard.put_nowait(level), lambda: heard.put_nowait(file.value.names))
        )

        async def told(*expected):
            assert [await asyncio.wait_for(heard.get(), 60) for _ in expected] == list(expected)

        def write(content):
            path.with_suffix(".new").write_text(content)
            path.with_suffix(".new").replace(path)

        await told(logging.ERROR)  # it is not there yet
        write(adapter_list.text(ENTRIES))
        await told(logging.INFO, ("sql", "team/law"))
        write("[")
        await told(logging.ERROR)
        assert file.value.names == ("sql", "team/law")
        write(adapter_list.text(ENTRIES[:1]))
        await told(logging.INFO, ("sql",))
        following.cancel()

    asyncio.run(follow())


@pytest.mark.parametrize(("content", "problem"), [(None, "No such file or directory"), ("[", "not a list of adapters")])
def test_one_that_is_missing_or_bad_at_the_start_is_logged_once(tmp_path, content, problem):
    path, lines = tmp_path / "adapters.json", []
    if content is not None:
        path.write_text(content)
    file = AdapterFile(path, interval=0)

    def look():
        asyncio.run(file.look_later(lambda level, line: lines.append((level, line))))

    look()
    look()
    ((level, line),) = lines
    assert level == logging.ERROR
    assert line.startswith(f"adapters stay as they were: {path}: {problem}")
    path.write_text(adapter_list.text(ENTRIES))
    look()
    assert file.value.entries == ENTRIES
    assert lines[1:] == [(logging.INFO, f"adapters are read again from {path}")]
