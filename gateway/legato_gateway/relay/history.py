"""Routes of the last requests, as `/state` shows them."""

from collections import OrderedDict, deque

from legato_gateway.request import RouteRecord
from legato_protocol.stream import HandoffReport

KEPT = 256
LEGS_PER_REQUEST = 8  # ids remembered for reports that come after the request has ended


class History:
    """The last `KEPT` route records, oldest first; hand-off reports find theirs by leg id."""

    def __init__(self) -> None:
        self.records: deque[RouteRecord] = deque(maxlen=KEPT)
        self._by_leg: OrderedDict[str, RouteRecord] = OrderedDict()

    def add(self, leg: str, record: RouteRecord) -> None:
        """A request begins, under this leg."""
        self.records.append(record)
        self.also(leg, record)

    def also(self, leg: str, record: RouteRecord) -> None:
        """Another leg of a known request."""
        self._by_leg[leg] = record
        while len(self._by_leg) > KEPT * LEGS_PER_REQUEST:
            self._by_leg.popitem(last=False)

    def handed_over(self, receiver: str, report: HandoffReport) -> None:
        """A receiver committed a hand-off."""
        record = self._by_leg.get(report.id)
        if record is None:
            return
        record.transport = report.transport
        record.handoffs.append(
            {
                "source": report.source,
                "target": receiver,
                "attempt": report.attempt,
                "blocks": report.blocks,
                "cached_blocks": report.cached_blocks,
                "bytes": report.bytes,
                "seconds": report.seconds,
                "boundary_seconds": report.boundary,
                "transport": report.transport,
            }
        )
