"""A queue between two threads that a selector can wait for."""

import gc
import os

import pytest
from readiness import wait_readable

from legato_engine.mailbox import Mailbox


def look(box):
    return bool(wait_readable([box], 0)), box.take()


def test_it_is_readable_from_a_put_until_the_next_take():
    box = Mailbox()
    assert look(box) == (False, [])
    box.put(1)
    box.put(2)
    assert [look(box), look(box)] == [(True, [1, 2]), (False, [])]


class TakenBeforeItWakes(Mailbox):
    """The items are taken when they are there and their wake is yet to come."""

    def wake(self):
        self.early = self.take()
        super().wake()


def test_an_item_that_is_taken_before_its_wake_costs_an_empty_take():
    box = TakenBeforeItWakes()
    box.put(1)
    assert [box.early, look(box), look(box)] == [[1], (True, []), (False, [])]


@pytest.mark.parametrize("closed", [True, False])
def test_its_descriptor_is_closed_once_whether_it_is_closed_or_forgotten(monkeypatch, closed):
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
