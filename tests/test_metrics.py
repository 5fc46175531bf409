"""Metrics that processes expose: clean to read for Prometheus, and of few series."""

import re
import subprocess

import emitted
import pytest
import required
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families

PROCESSES = ("gateway", "worker", "operator")
BOUNDED = {
    "cause",
    "error",
    "finish",
    "kind",
    "le",
    "method",
    "outcome",
    "reason",
    "result",
    "tier",
    "verb",
    "what",
}  # words of the code
OBJECTS = {
    "by",
    "direction",
    "gpu",
    "namespace",
    "objective",
    "pool",
    "service",
    "status",
    "tenant",
    "type",
    "worker",
    "xid",
}
BASE_UNITS = re.compile(r"_(ms|milliseconds|minutes|hours|kilobytes|mib|percent|perc)(_|$)")


@pytest.mark.parametrize("process", PROCESSES)
def test_what_a_process_exposes_is_valid_open_metrics(process):
    text = exposition.generate_latest(emitted.registries()[process]).decode()
    families = list(text_string_to_metric_families(text))
    assert len(families) > 10
    assert all(family.name.startswith(f"legato_{process}_") for family in families)


@required.program("promtool")
@pytest.mark.parametrize("process", PROCESSES)
def test_promtool_has_nothing_to_say_about_it(process):
    text = generate_latest(emitted.registries()[process])
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_every_family_says_what_it_is_in_base_units():
    for family in emitted.families():
        assert family.documentation, family.name
        assert not BASE_UNITS.search(family.name), family.name


def test_labels_are_known_ones():
    """None of them is a request, a user or a text: those would make series without end."""
    labels = {label for family in emitted.families() for sample in family.samples for label in sample.labels}
    assert labels <= BOUNDED | OBJECTS
