"""A queue between two threads that a selector can wait for."""

import gc
import os

import pytest
from readiness import wait_readable

from legato_engine.mailbox import Mailbox


def is_readable(box):
    return bool(wait_readable([box], 0))


def test_it_is_readable_from_a_put_until_the_next_take():
    box = Mailbox()
    assert not is_readable(box)
    assert box.take() == []
    box.put(1)
    box.put(2)
    assert is_readable(box)
    assert box.take() == [1, 2]
    assert not is_readable(box)
    box.close()


class TakenBeforeItWakes(Mailbox):
    """The taker looks when the item is there and its wake is yet to come."""

    def wake(self):
        self.early = self.take()
        super().wake()


def test_an_item_that_is_taken_before_its_wake_costs_an_empty_take():
    box = TakenBeforeItWakes()
    box.put(1)
    assert box.early == [1]
    assert is_readable(box)
    assert box.take() == []
    assert not is_readable(box)
    box.close()


@pytest.mark.parametrize("closed", [True, False])
def test_its_descriptor_is_closed_once_whether_it_is_closed_or_forgotten(monkeypatch, closed):
    """Not twice: the number is soon another file's."""
    ended, close = [], os.close
    monkeypatch.setattr(os, "close", lambda number: (ended.append(number), close(number)))
    box = Mailbox()
    number = box.fileno()
    if closed:
        box.close()
        box.close()
    assert ended.count(number) == closed
    del box
    gc.collect()
    assert ended.count(number) == 1
