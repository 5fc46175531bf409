"""The UCX thread and endpoints that misbehave."""

from itertools import count
from types import SimpleNamespace

import pytest

from legato_engine.transfer.link import LinkError
from legato_engine.transfer.ucx import thread
from legato_engine.transfer.ucx.thread import UcxThread


def test_an_endpoint_that_never_closes_ends_the_thread_instead_of_hanging_it(monkeypatch):
    monkeypatch.setattr(thread, "CLOSING_PATIENCE", 0.0)
    stuck = SimpleNamespace(number=7, handle=1, close=lambda: None, closed=lambda: False)
    running = UcxThread(count(), None, lambda event: None, lambda error: None)
    running._endpoints, running._by_handle = {7: stuck}, {1: 7}
    running._worker = SimpleNamespace(progress_once=lambda: None)
    with pytest.raises(LinkError, match="endpoint 7 did not close"):
        running.fence(7)
