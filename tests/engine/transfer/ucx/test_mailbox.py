"""A queue between two threads that a selector can wait for."""

import select

from legato_engine.transfer.ucx.mailbox import Mailbox


def is_readable(box):
    return bool(select.select([box], [], [], 0)[0])


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


class TakenBeforeItRings(Mailbox):
    """The taker looks when the item is there and the bell has not rung yet."""

    def ring(self):
        self.early = self.take()
        super().ring()


def test_an_item_that_is_taken_before_its_bell_rings_costs_one_look_in_vain():
    box = TakenBeforeItRings()
    box.put(1)
    assert box.early == [1]
    assert is_readable(box)
    assert box.take() == []
    assert not is_readable(box)
    box.close()
