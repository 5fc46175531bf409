"""A real Prometheus in front of a running service: the chart's rules and dashboards find what they ask for."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from legato_operator.api import conditions

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "legato" / "files"
RARE = re.compile(r"refused_requests|redispatches|bad_frames|scaling_changes|_arrived_")  # told once there was one
OPERATORS = re.compile(r"legato_operator_\w+")
# One series of the operator's as a rule has it: the labels that it is grouped or joined by, its name, its own matchers.
USED = re.compile(r"(?:by|on) \(([^)]*)\) \(?(?:\w+\()?(legato_operator_\w+)(?:{([^}]*)})?")
FAILED = "legato_operator_reconcile_errors_total"  # a pass that fails ends `legato up`
# The ratio keeps decode small, so that no further worker is started where the test asks for one.
SCALING = "{mode: Managed, prefill: {min: 1, max: 1}, decode: {min: 1, max: 2}, maxDecodePerPrefill: 1}"

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus on the PATH")


@pytest.fixture(scope="module")
def service(start: Callable[..., Any]) -> Any:
    """One that answered questions of different lengths, so that it could measure its rates, and the last one twice.

    Somebody has asked for more decode workers than it may have.
    """
    service = start(scaling=SCALING)
    for length in (*range(20, 180, 10), 170):
        service.stream(f"{length} is " + "very " * length, max_tokens=20, temperature=0).result()
    scaled = service.command("scale", "decode", "2")
    assert scaled.returncode == 0, scaled.stderr
    return service


@pytest.fixture(scope="module")
def prometheus(service: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Scrapes the operator, the gateway and both workers once a second, and evaluates the rules."""
    folder = tmp_path_factory.mktemp("prometheus")
    operator = psutil.Process(service.process.pid)
    (gateway,) = [process for process in operator.children() if "gateway" in process.cmdline()]
    workers = [(service.processes(worker["worker"])[0], worker["role"]) for worker in service.workers()]
    targets = [(_metrics_of(service, process), role) for process, role in [(gateway, "gateway"), *workers]]
    labels = {"namespace": "default", "service": "test"}
    jobs = [{"targets": [at], "labels": {**labels, "role": role, "pod": at}} for at, role in targets]
    release = {"namespace": "legato-system", "pod": "legato-0"}
    own = [{"targets": [_metrics_of(service, operator)], "labels": release}]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(file) for file in (FILES / "rules").glob("*.yaml")],
        "scrape_configs": [
            {"job_name": "legato", "static_configs": jobs},
            {"job_name": "operator", "static_configs": own, "honor_labels": True},  # as the chart's PodMonitor
        ],
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={folder}/config.yaml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log)
    try:
        port = service.until(lambda: _listens(process), lambda: (folder / "log").read_text())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            service.until(lambda: _scrapes(client) > len(targets), "all targets were scraped three times")
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _listens(process: "subprocess.Popen[bytes]") -> int | None:
    assert process.poll() is None, "prometheus ended"
    sockets = psutil.Process(process.pid).net_connections("tcp")
    return next((each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN), None)


def _metrics_of(service: Any, process: psutil.Process) -> str:
    """Address of its health port."""
    for each in process.net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN:
            address = f"127.0.0.1:{each.laddr.port}"
            if service.http.get(f"http://{address}/metrics").status_code == 200:
                return address
    pytest.fail(f"{process} has no metrics")


def _ask(client: httpx.Client, query: str) -> list[dict[str, Any]]:
    answer = client.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def _scrapes(client: httpx.Client) -> int:
    """Targets that have been up at three scrapes."""
    if not client.get("/-/ready").is_success:
        return 0
    return len(_ask(client, "sum_over_time(up[1h]) >= 3"))


def test_dashboards_show_something_in_every_panel(prometheus):
    for board in sorted((FILES / "dashboards").glob("*.json")):
        for panel in json.loads(board.read_text())["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"].replace("$__rate_interval", "1h").replace("$namespace", ".*")
                found = _ask(prometheus, query.replace("$service", ".*"))
                assert found or RARE.search(query), (board.name, panel["title"], query)


def test_time_to_first_token_is_the_sum_of_its_parts(prometheus):
    def value(query: str) -> float:
        (row,) = _ask(prometheus, query)
        return float(row["value"][1])

    parts = "+".join(f"sum(legato_gateway_request_{part}_time_seconds_sum)" for part in ("queue", "prefill", "handoff"))
    assert value(f"({parts}) / sum(legato_gateway_time_to_first_token_seconds_sum)") == pytest.approx(1.0)
    handoffs = value("sum(legato_gateway_request_handoff_time_seconds_count)")
    assert handoffs == 16, "the last question was cached where it was decoded"
    assert value("sum(legato_gateway_prompt_tokens_cached_total)") > 100


def test_workers_needed_are_recorded_for_both_pools(prometheus, service):
    service.until(lambda: len(_ask(prometheus, "legato:workers_needed")) == 2, "both are recorded")
    assert {each["metric"]["role"] for each in _ask(prometheus, "legato:workers_needed")} == {"prefill", "decode"}


def test_rules_have_no_errors_and_nothing_is_alarming(prometheus):
    groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []


def test_rules_find_each_series_of_the_operator_with_the_labels_that_they_use(prometheus):
    files = [*(FILES / "rules").glob("*.yaml"), FILES.parent / "templates" / "_helpers.tpl"]  # and about the operator
    rules = "\n".join(file.read_text() for file in files)
    words = {word for word in vars(conditions).values() if isinstance(word, str)}
    used = USED.findall(rules)
    assert len(used) == len(OPERATORS.findall(rules)), "each is read here"
    for labels, name, matchers in used:
        named = {label.strip() for label in labels.split(",")}
        told = re.findall(r'(\w+)(=~?)"([^"]*)"', matchers)
        known = {label for label, _, _ in told}
        # Of conditions, the type or reason may not be there while nothing is wrong.
        rare = {word for label, _, text in told if label in ("type", "reason") for word in text.split("|")}
        assert rare <= words, "no condition has it"
        asked = [f'{label}{sign}"{text}"' for label, sign, text in told if not rare & {*text.split("|")}]
        query = ", ".join([*asked, *(f'{label}!=""' for label in named | known)])
        assert _ask(prometheus, f"{name}{{{query}}}") or name == FAILED, (name, query)
