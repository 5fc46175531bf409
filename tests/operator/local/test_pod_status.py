"""A local pod's status, in Kubernetes' format."""

from legato_operator.local.pod_status import PodStatus


def _told(status):
    manifest = status.manifest("worker")
    (ready,), (container,) = manifest["conditions"], manifest["containerStatuses"]
    return ready["lastTransitionTime"], container["state"].get("running", {}).get("startedAt")


def test_process_keeps_the_time_of_its_start_while_its_readiness_comes_and_goes():
    starting = PodStatus().started(7).stamped(PodStatus(), "10:00")
    ready = starting.probed(True, "").stamped(starting, "10:01")
    blinking = ready.probed(False, "503").stamped(ready, "10:02")
    assert [_told(each) for each in (starting, ready, blinking)] == [
        ("10:00", "10:00"),
        ("10:01", "10:00"),
        ("10:02", "10:00"),
    ]
    ended = blinking.ended(1, "", 1.0).stamped(blinking, "10:03")
    assert _told(ended) == ("10:02", None)
    assert _told(ended.started(8).stamped(ended, "10:04")) == ("10:02", "10:04")
