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
    path, changes, lines = tmp_path / "adapters.json", [], []

    async def follow():
        file = AdapterFile(path, interval=0.001)
        assert file.value == AdapterList()
        following = asyncio.create_task(
            file.follow_changes(lambda level, line: lines.append(level), lambda: changes.append(file.value.names))
        )
        for content in (adapter_list.text(ENTRIES), "[", adapter_list.text(ENTRIES[:1])):
            before, told = len(changes), len(lines)
            path.with_suffix(".new").write_text(content)
            path.with_suffix(".new").replace(path)
            async with asyncio.timeout(60):
                while len(changes) == before and len(lines) == told:  # noqa: ASYNC110 - of a file
                    await asyncio.sleep(0.001)
        async with asyncio.timeout(60):
            while len(changes) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        following.cancel()

    asyncio.run(follow())
    assert changes == [("sql", "team/law"), ("sql",)]
    assert logging.ERROR in lines
