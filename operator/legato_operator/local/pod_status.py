"""A local pod's status in the format of Kubernetes, with its announced `ports`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

HOST = "127.0.0.1"


@dataclass(frozen=True)
class PodStatus:
    ready: bool = False
    since: str = ""  # time of the last change of `ready`
    began: str = ""  # start time of its process
    message: str = "starting"
    ports: tuple[tuple[str, int], ...] = ()
    pid: int | None = None
    restarts: int = 0
    exit_code: int | None = None
    last_words: str = ""

    def started(self, pid: int) -> "PodStatus":
        return replace(self, ready=False, message="starting", ports=(), pid=pid)

    def announced(self, ports: Mapping[str, int]) -> "PodStatus":
        return replace(self, ports=tuple(sorted(ports.items())))

    def probed(self, ready: bool, message: str) -> "PodStatus":
        return replace(self, ready=ready, message=message)

    def stamped(self, before: "PodStatus", now: str) -> "PodStatus":
        """Returns the status with its times, given the status before and the time `now`."""
        since = before.since if before.since and before.ready == self.ready else now
        return replace(self, since=since, began=before.began if before.pid == self.pid else now)

    def ended(self, exit_code: int, last_words: str, delay: float) -> "PodStatus":
        """Returns the status after a process ended that will be restarted in `delay` seconds."""
        why = f"exited with code {exit_code}" if exit_code >= 0 else f"killed by signal {-exit_code}"
        return replace(
            self,
            ready=False,
            message=f"{why}, starts again in {delay:g} s: {last_words}",
            ports=(),
            pid=None,
            restarts=self.restarts + 1,
            exit_code=exit_code,
            last_words=last_words,
        )

    def manifest(self, container: str) -> dict[str, Any]:
        """Returns the `status` field."""
        ended = {"terminated": {"exitCode": self.exit_code, "message": self.last_words}}
        return {
            "phase": "Pending" if self.pid is None else "Running",
            "podIP": HOST,
            "ports": dict(self.ports),
            "pid": self.pid,
            "conditions": [
                {"type": "Ready", "status": str(self.ready), "message": self.message, "lastTransitionTime": self.since}
            ],
            "containerStatuses": [
                {
                    "name": container,
                    "ready": self.ready,
                    "restartCount": self.restarts,
                    "state": {"running": {"startedAt": self.began}} if self.pid is not None else {},
                    "lastState": ended if self.exit_code is not None else {},
                }
            ],
        }
