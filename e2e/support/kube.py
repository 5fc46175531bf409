"""The cluster under test, by the programs that people use: kubectl and helm."""

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
PATIENCE = 180.0  # seconds; only a hang reaches it


def run(*command: str, stdin: str = "", patience: float = PATIENCE) -> str:
    """What a program prints. Fails with what it says when it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=patience, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


def until(condition: Callable[[], T | None], what: str, pause: float = 0.2, patience: float = PATIENCE) -> T:
    """What `condition` gives once that is true. Fails loudly instead of waiting for ever."""
    give_up = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > give_up:
            pytest.fail(f"waited in vain until {what}")
        time.sleep(pause)
    return found


class Namespace:
    """Objects of one namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return run("kubectl", "--namespace", self.name, *arguments, stdin=stdin)

    def apply(self, manifest: str) -> None:
        """A manifest's text."""
        self.kubectl("apply", "--filename", "-", stdin=manifest)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """The object; empty when there is none."""
        text = self.kubectl("get", kind, name, "--output", "json", "--ignore-not-found")
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        text = self.kubectl("get", kind, "--output", "json", "--selector", selector)
        found: list[dict[str, Any]] = json.loads(text)["items"]
        return found
