"""Routes of the last requests, and whose a report of a hand-off is."""

from legato_gateway.relay.records.history import IDS_PER_REQUEST, KEPT, History
from legato_gateway.request import RouteRecord
from legato_protocol.wire.stream import HandoffReport


def report(id):
    return HandoffReport(id, 2, 99, "p0", 5, 3, 7000, 0.25, 0.125, "ucx:tcp")


def test_a_report_finds_its_request_by_the_id_of_any_of_its_sub_requests():
    history, record = History(), RouteRecord("r")
    history.add("r.0", record)
    history.also("r.0/1", record)
    history.handed_over("d0", report("r.0/1"))
    history.handed_over("d1", report("unknown"))
    assert list(history.records) == [record]
    assert record.transport == "ucx:tcp"
    sizes = {"blocks": 5, "cached_blocks": 3, "bytes": 7000, "seconds": 0.25, "boundary_seconds": 0.125}
    assert record.handoffs == [{"source": "p0", "target": "d0", "attempt": 2, "transport": "ucx:tcp", **sizes}]


def test_the_last_routes_are_kept_and_the_last_ids():
    history = History()
    records = [RouteRecord(f"r{i}") for i in range(KEPT * IDS_PER_REQUEST + 1)]
    for record in records:
        history.add(record.id, record)
    assert list(history.records) == records[-KEPT:]
    for record in records:
        history.handed_over("d0", report(record.id))
    assert [record for record in records if not record.handoffs] == records[:1]


def test_a_worker_that_is_given_a_part_again_is_named_once():
    record = RouteRecord("r")
    for names in (("", "d0"), ("p0", "d1"), ("", "d0")):
        record.add_workers(*names)
    assert record.workers == ["d0", "p0", "d1"]
