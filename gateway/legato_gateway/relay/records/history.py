"""Routes of the last requests, as `/state` shows them."""

from collections import OrderedDict, deque

from legato_gateway.request import RouteRecord
from legato_protocol.wire.stream import HandoffReport

KEPT = 256
IDS_PER_REQUEST = 8  # ids remembered for reports that come after the request has ended


class History:
    """The last `KEPT` route records, oldest first. Hand-off reports find theirs by a sub-request's id."""

    def __init__(self) -> None:
        self.records: deque[RouteRecord] = deque(maxlen=KEPT)
        self._by_id: OrderedDict[str, RouteRecord] = OrderedDict()

    def add(self, id: str, record: RouteRecord) -> None:
        """Adds a request, with the id of its first sub-request."""
        self.records.append(record)
        self.also(id, record)

    def also(self, id: str, record: RouteRecord) -> None:
        """Adds another sub-request of a known request."""
        self._by_id[id] = record
        while len(self._by_id) > KEPT * IDS_PER_REQUEST:
            self._by_id.popitem(last=False)

    def handed_over(self, receiver: str, report: HandoffReport) -> None:
        """Records a hand-off that its receiver committed."""
        record = self._by_id.get(report.id)
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
