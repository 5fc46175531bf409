"""Blocks that are neighbours here and there are written as one."""

from legato_engine.transfer.link import PutSpan
from legato_engine.transfer.puts import spans


def test_one_span_for_each_run():
    assert spans([3, 5, 6], 1000, [4, 1, 2], 5000, 10) == [PutSpan(1030, 5040, 10), PutSpan(1050, 5010, 20)]
