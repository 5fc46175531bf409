"""Orders that a running `legato up` answers: the orders of any service, and local ones."""

from collections.abc import Mapping
from typing import Any

from legato_cli.recording.reader import RoundReader
from legato_cli.services import log_lines
from legato_cli.services.events import RecentEvents
from legato_cli.services.log_lines import LogLines
from legato_cli.services.operations import Operations, OrderRefused
from legato_cli.ui import target
from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, Ref
from legato_operator.manifests import common
from legato_operator.observing.observe import Gateways
from legato_simulator.replay import signal_round


class LocalOperations(Operations):
    """Also answers `legato ui`, `legato logs` and `legato record`."""

    def __init__(
        self, cluster: Cluster, ref: Ref, clock: Clock, gateways: Gateways, written: LogLines, url: str = ""
    ) -> None:
        super().__init__(cluster, ref, clock)
        self._rounds = RoundReader(cluster, ref, gateways, clock)
        self.recent = RecentEvents(clock)
        self.written = written
        self._url = url

    async def _answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        match order:
            case {"do": "ui"}:
                return {"target": (await target.read(self._cluster, self._ref)).message()}
            case {"do": "logs"}:
                return log_lines.answer(self.written, order)
            case {"do": common.ROTATE_TOKEN}:
                raise OrderRefused("only on Kubernetes (on one machine, the token lives and ends with `legato up`)")
            case {"do": "signals"}:
                return {"round": signal_round.encode(await self._rounds.read()).decode()}
        return await super()._answer(order)

    async def _read(self) -> tuple[Object, dict[str, Any]]:
        stored, shown = await super()._read()
        return stored, {**shown, "url": self._url}

    async def _events(self, stored: Object) -> list[dict[str, Any]]:
        return self.recent.all()
