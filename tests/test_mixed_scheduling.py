"""Tests of whole services run in a row in one process, and others meanwhile in others."""

from types import SimpleNamespace

import pytest
from mixed_scheduling import MixedScheduling

SERVICES = [f"tests/system/test_{name}.py::test_{i}" for name in "abcd" for i in range(4)]
OTHERS = [f"tests/engine/test_{name}.py::test_{i}" for name in "vwxyz" for i in range(4)]


class Node:
    """A process of pytest-xdist: it runs what it is sent, in that order."""

    def __init__(self, number):
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.waiting = []

    def send_runtest_some(self, indices):
        self.waiting += indices

    def shutdown(self):
        self.shutting_down = True


@pytest.fixture
def run(pytestconfig):
    """Runs two processes; returns what each of them ran, and all that ran at one time."""

    def play(collection):
        option = SimpleNamespace(tx=["popen"] * 2, maxprocesses=None, loadscopereorder=False)
        config = SimpleNamespace(getvalue=lambda name: getattr(option, name), option=option, hook=pytestconfig.hook)
        scheduling, nodes = MixedScheduling(config), [Node(0), Node(1)]
        for node in nodes:
            scheduling.add_node(node)
            scheduling.add_node_collection(node, collection)
        scheduling.schedule()
        ran, together = ([], []), []
        while any(node.waiting for node in nodes):
            together.append([collection[node.waiting[0]] for node in nodes if node.waiting])
            for node, done in zip(nodes, ran, strict=True):
                if node.waiting:
                    done.append(collection[test := node.waiting.pop(0)])
                    scheduling.mark_test_complete(node, test)
        return ran, together

    return play


def test_services_come_one_after_another_in_one_process(run):
    ran, _ = run(SERVICES + OTHERS)

    assert SERVICES in [[test for test in tests if test in SERVICES] for tests in ran]
    assert sorted([*ran[0], *ran[1]]) == sorted(SERVICES + OTHERS)


def test_no_process_is_idle_while_files_are_left(run):
    _, together = run(SERVICES + OTHERS)

    assert all(len(tests) == 2 for tests in together[: len(OTHERS) - 4])
