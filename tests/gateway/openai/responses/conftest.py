"""Gateways that store responses."""

from collections.abc import Callable
from typing import Any

import pytest
from scripted_gateway import Clock

from legato_gateway.openai.responses.store import ResponseStore, StorePolicy


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> ResponseStore:
    """For an hour by that clock."""
    return ResponseStore(StorePolicy(3600.0, 1 << 20), clock)


@pytest.fixture
def storing(make: Callable[..., Any], store: ResponseStore) -> Any:
    return make(responses=store)
