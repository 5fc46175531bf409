"""Adapters that clients can name: all of the list, as soon as workers have them."""

import pytest

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.workers.served import ServedAdapters
from legato_protocol.model_files import adapter_list
from legato_protocol.model_files.adapter_file import AdapterFile
from legato_protocol.model_files.adapter_list import AdapterEntry


class Fleet:
    def __init__(self, *workers):
        self.workers = workers

    def snapshot(self):
        return FleetSnapshot(tuple(self.workers))


def worker(name, role, *adapters, ready=True):
    held = {adapter: f"digest-{adapter}" for adapter in adapters}
    return WorkerView(name, role, "e", "kv", 16, 64, 1024, adapters=held, ready=ready)


@pytest.fixture
def served(tmp_path):
    def names(*workers, listed=("sql", "tiny", "law")):
        path = tmp_path / "adapters.json"
        path.write_text(adapter_list.text(tuple(AdapterEntry(name, f"/{name}") for name in listed)))
        return ServedAdapters(Fleet(*workers), (), AdapterFile(path), "tiny").names()

    return names


def test_one_is_served_once_workers_of_each_kind_have_it(served):
    some = worker("p0", "prefill", "sql", "law"), worker("d0", "decode", "sql")
    assert served(*some) == ("sql",)
    assert served(*some, worker("d1", "decode", "law")) == ("sql", "law")
    assert served(worker("d0", "decode", "law")) == ("law",), "where no prefill worker is, decode workers prefill"
    assert served(worker("u0", "unified", "law", "sql")) == ("sql", "law")


def test_workers_that_are_gone_count_for_nothing_and_without_any_requests_wait(served):
    gone = worker("u0", "unified", "law", "sql", ready=False)
    assert served() == served(worker("u0", "unified", ready=False)) == ("sql", "law")
    assert served(gone, worker("u1", "unified", "law")) == ("law",)


def test_only_the_adapters_of_the_list_or_of_flags_are_served_whatever_workers_have(served):
    assert served(worker("u0", "unified", "law", "sql"), listed=("law",)) == ("law",)
    assert ServedAdapters(Fleet(worker("u0", "unified")), ("sql",), None, "tiny").names() == ("sql",)
