"""Waiting for files, however many are open: `select.select` takes no descriptor from 1,024 on."""

import selectors
from collections.abc import Iterable
from typing import Any


def wait_readable(files: Iterable[Any], seconds: float) -> list[Any]:
    """Returns the files that can be read, after at most this time."""
    with selectors.PollSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(seconds)]
