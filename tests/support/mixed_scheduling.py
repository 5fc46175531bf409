"""Schedules the tests that one process of pytest-xdist runs in a row."""

from xdist.scheduler import LoadFileScheduling

SYSTEM = "tests/system/"


class MixedScheduling(LoadFileScheduling):
    """A file, or all tests of whole services: they share one, and have deadlines that two would miss on the same cores.

    They often wait; other processes run other files meanwhile.
    """

    def _split_scope(self, nodeid: str) -> str:
        return SYSTEM if SYSTEM in nodeid else super()._split_scope(nodeid)
