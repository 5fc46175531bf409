"""The digest of a report changes with everything that an operator may act on, and not with time."""

import pytest
from msgspec import structs
from planned import report

from legato_gateway.http.demand_report import digest
from legato_protocol.wire.canary import Canary, CanaryReport, RevisionReport
from legato_protocol.wire.demand import STALE_AFTER, LengthBucket, ReportedLoad, WorkerLink
from legato_protocol.wire.load import Load

LOAD = Load(queue_tokens=0, waiting=0, running=0, free_blocks=9, cached_blocks=1, used_blocks=0, quarantined_blocks=0)
WORKER = ReportedLoad("w", "epoch", "decode", 16, 0.5, LOAD)
LINK = WorkerLink("w", connected=False, lost_for=1.0)
REPORT = report(workers=(WORKER,), links=(LINK,))


def _worker(age=0.5, **load):
    return {"workers": (structs.replace(WORKER, age=age, load=structs.replace(LOAD, **load)),)}


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"uptime": 5.0}, True),
        (_worker(age=STALE_AFTER), True),
        (_worker(prefill_age=3.0, decode_age=2.0, core_silence=1.0), True),
        ({"links": (structs.replace(LINK, lost_for=99.0),)}, True),
        (_worker(age=STALE_AFTER + 1), False),
        (_worker(running=1), False),
        ({"workers": ()}, False),
        ({"links": (structs.replace(LINK, connected=True),)}, False),
        ({"arrivals": (LengthBucket(1, 1, 1),)}, False),
        ({"queued_requests": 1}, False),
        ({"tokens": ("new",)}, False),
        ({"gateway": "restarted"}, False),
        ({"canary": CanaryReport(Canary({}, 10), RevisionReport(), RevisionReport(requests=1))}, False),
    ],
    ids=str,
)
def test_digest_follows_demand_and_not_time(changes, same):
    assert (digest(structs.replace(REPORT, **changes)) == digest(REPORT)) is same
