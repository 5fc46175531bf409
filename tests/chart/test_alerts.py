"""Alerts and dashboards of the chart: they ask for metrics that exist, fire when they should, and are explained."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import emitted
import pytest
import required
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "legato"
RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
CASES = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
METRIC = re.compile(r"\blegato_\w+")

needs_promtool = required.program("promtool")


def _rules(kind: str = "alert") -> list[dict[str, Any]]:
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def _queries() -> Iterator[tuple[str, str]]:
    for rule in (*_rules(), *_rules("record")):
        yield rule.get("alert") or rule["record"], rule["expr"]
    yield "_helpers.tpl", (CHART / "templates" / "_helpers.tpl").read_text().split("legato.operatorAlerts")[1]
    for board in DASHBOARDS:
        content = json.loads(board.read_text())
        for panel in content["panels"]:
            for target in panel.get("targets", ()):
                yield f"{board.stem}: {panel['title']}", target["expr"]
        for variable in content["templating"]["list"]:
            yield f"{board.stem}: {variable['name']}", variable["query"]


def _promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_query_asks_for_metrics_that_are_emitted():
    names, asked = emitted.names(), 0
    for where, query in _queries():
        found = set(METRIC.findall(query))
        assert found <= names, (where, found - names)
        asked += len(found)
    assert asked > 60


def test_every_dashboard_shows_each_panel_once_and_in_place():
    assert {board.stem for board in DASHBOARDS} == {"scaling", "serving"}
    for board in DASHBOARDS:
        panels = json.loads(board.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
        assert len(set(places)) == len(places)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_every_alert_has_its_part_of_the_runbook_and_the_other_way_round():
    inline = re.findall(r"alert: (\w+)", (CHART / "templates" / "_helpers.tpl").read_text())
    headings = re.findall(r"^## (Legato\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted([*inline, *(rule["alert"] for rule in _rules())])


def test_every_alert_is_seen_to_fire_and_to_keep_quiet():
    cases = [case for file in CASES for case in yaml.safe_load(file.read_text())["tests"]]
    checks = [check for case in cases for check in case.get("alert_rule_test", ())]
    known = {rule["alert"] for rule in _rules()}
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == known
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == known


@needs_promtool
def test_prometheus_understands_every_rule():
    _promtool("check", "rules", *map(str, RULES))


@needs_promtool
@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_rules_say_what_they_should(file):
    _promtool("test", "rules", str(file))


@needs_promtool
def test_prometheus_understands_every_query_of_the_dashboards(tmp_path):
    """As a rule each, with Grafana's own variables filled in."""
    queries = [query for where, query in _queries() if ": " in where and "label_values" not in query]
    filled = [query.replace("$__rate_interval", "1m") for query in queries if "legato_" in query]
    assert len(filled) > 50
    rules = [{"record": f"panel_{number}", "expr": query} for number, query in enumerate(filled)]
    written = tmp_path / "rules.yaml"
    written.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    _promtool("check", "rules", str(written))
