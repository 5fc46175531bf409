"""Nothing can be set or measured that the docs do not know, and they know nothing else; and source roots."""

import dataclasses
import operator
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import emitted
import msgspec
import pytest
from pydantic import BaseModel

from legato_cli.bench import arguments as bench
from legato_cli.chat import command as chat
from legato_cli.local import up
from legato_cli.machine import tune
from legato_cli.manifests import validate
from legato_cli.models import prepare
from legato_cli.plan import arguments as plan
from legato_cli.recording import arguments as record
from legato_cli.services import logs, profile
from legato_cli.simulate import arguments as simulate
from legato_engine import metrics as worker_metrics
from legato_engine import settings as worker_settings
from legato_engine.core.frames import CoreStatus, CoreTotals
from legato_engine.kvcache.tier_counts import TierCounts
from legato_engine.transfer.session.counts import Counts
from legato_gateway import errors
from legato_gateway import settings as gateway_settings
from legato_gateway.anthropic import schemas as messages
from legato_gateway.metrics.gateway_metrics import Metrics
from legato_gateway.openai import schemas
from legato_gateway.openai.responses.body import SHARED, ResponsesBody
from legato_operator.api import conditions, field_errors
from legato_operator.api.resources import InferenceService
from legato_operator.autoscaler import decision
from legato_operator.kubernetes import settings as operator_settings
from legato_operator.metrics.operator_metrics import OperatorMetrics
from legato_protocol import names
from legato_protocol.sampling import limits as sampling_limits
from legato_protocol.wire.load import Load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SECTIONS = ("Ignored", "Without effect", "Refused")  # of request-fields.md
SOURCE_ROOTS = ("protocol", "telemetry", "grammar", "engine", "gateway", "operator", "simulator", "cli")


def _section(page: str, heading: str) -> str:
    return (DOCS / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]


def _rows(page: str, heading: str) -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", _section(page, heading), re.MULTILINE))


def _words(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text)) - {"unsupported_value"}


def _fields(kind: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind)}


def _listed(section: str, *apis: str) -> set[str]:
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", _section("request-fields.md", section), re.MULTILINE)
    return set().union(*(_words(row) for api, row in rows if api in apis)) - {"direct", "disabled", "assistant"}


COMMANDS = [("worker", worker_settings), ("gateway", gateway_settings), ("operator", operator_settings)]


@pytest.mark.parametrize(("command", "module"), COMMANDS)
def test_docs_know_every_flag(command, module):
    parser = ArgumentParser(add_help=False)
    module.add_flags(parser)
    assert _rows("settings.md", f"`legato {command}`") == set(parser._option_string_actions)


@pytest.mark.parametrize(
    ("module", "page", "heading"),
    [
        (bench, "bench.md", "Every flag"),
        (simulate, "simulate.md", "Every flag"),
        (plan, "simulate.md", "One pool or two"),
        (prepare, "settings.md", "`legato prepare`"),
        (record, "settings.md", "`legato record`"),
        (profile, "settings.md", "`legato profile`"),
        (tune, "settings.md", "`legato tune`"),
        (up, "settings.md", "`legato up`"),
        (validate, "settings.md", "`legato validate`"),
        (logs, "settings.md", "`legato logs`"),
        (chat, "settings.md", "`legato chat`"),
    ],
)
def test_docs_know_every_flag_of_a_command(module, page, heading):
    parser = ArgumentParser()
    module.add_flags(parser)
    known = {flag for flag in parser._option_string_actions if flag.startswith("--")}
    shared = {"--service", "--namespace"} if page == "settings.md" else set()  # explained once, below the commands
    assert _rows(page, heading) == known - {"--help"} - shared


@pytest.mark.parametrize(("heading", "prefix"), [("Environment", "ENV_"), ("Headers of a request", "HEADER_")])
def test_docs_know_every_variable_and_header(heading, prefix):
    assert _rows("settings.md", heading) == {value for name, value in vars(names).items() if name.startswith(prefix)}


def test_docs_know_every_field_of_requests():
    page, chat, completion = "openai-api.md", _fields(schemas.ChatBody), _fields(schemas.CompletionBody)
    both, chats, completions = (_rows(page, heading) for heading in ("Fields of both", "Chat only", "Completions only"))
    for fields, api, own in ((chat, "chats", chats), (completion, "completions", completions)):
        ignored, no_effect, refused = (_listed(section, api) for section in SECTIONS)
        assert both | own | ignored | no_effect | refused == fields
        assert no_effect.isdisjoint(both | own | ignored | refused)
    assert both <= _fields(schemas.SamplingBody)


def test_docs_know_every_field_of_responses():
    page, theirs = "responses.md", _fields(schemas.SamplingBody)
    ignored, no_effect, refused = (_listed(section, "responses") for section in SECTIONS)
    own = _rows(page, "Fields")
    as_in_chats = _words((DOCS / page).read_text().split("These are as in [chats]")[1].split("`n` may only")[0])
    fields = _fields(ResponsesBody) - theirs | set(SHARED)
    assert fields == own | as_in_chats | ignored | no_effect | refused
    assert as_in_chats <= theirs
    assert no_effect.isdisjoint(own | as_in_chats | ignored | refused)


def test_docs_know_every_field_of_messages():
    ignored, no_effect, refused = (_listed(section, "messages") for section in SECTIONS)
    known = _rows("anthropic-api.md", "Fields")
    assert known | ignored | no_effect | refused == _fields(messages.MessagesBody)
    assert no_effect.isdisjoint(known | ignored | refused)


def test_docs_know_the_range_of_every_parameter():
    text = (DOCS / "openai-api.md").read_text()
    for name, limits in sampling_limits.RANGES.items():
        assert f"| `{name}` | {limits} |" in text


def test_docs_know_every_error_code_and_its_status():
    documented = dict(re.findall(r"^\| `(\w+)` \| (\d{3}) \|", (DOCS / "errors.md").read_text(), re.MULTILINE))
    raised = {kind.code: str(kind.status) for kind in _subclasses(errors.GatewayError) if kind.code}
    by_path = {
        "not_found": "404",
        "model_not_found": "404",
        "method_not_allowed": "405",
    }  # a NotFound is given its code
    assert documented == raised | by_path


def _subclasses(kind: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


@pytest.mark.parametrize(("heading", "metrics"), [("Gateway", Metrics), ("Operator", OperatorMetrics)])
def test_docs_know_every_metric_of_a_process(heading, metrics):
    assert _rows("metrics.md", heading) == {metric.name for metric in metrics().registry.collect()}


def test_docs_know_every_metric_of_a_worker():
    source = Path(worker_metrics.__file__).read_text()
    metrics = emitted.worker()
    metrics.exposition(
        CoreStatus(Load(0, 0, 0, 1, 0, 0, 0), CoreTotals(tiers={"disk": TierCounts()}), True), ready=True, gateways=0
    )
    exposed = {metric.name for metric in metrics.families()} | set(re.findall(r'"(legato_worker_[a-z_]+)"', source))
    assert _rows("metrics.md", "Worker") == exposed


def test_docs_know_everything_that_hand_offs_count():
    rows = _section("metrics.md", "What the hand-off counts").splitlines()
    cells = [line.split("|")[1] for line in rows if line.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert documented == {field.name for field in dataclasses.fields(Counts)}


def _manifest_fields(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        here = f"{path}{field.alias}"
        yield here
        if inner := field_errors.model_in(field.annotation):
            yield from _manifest_fields(inner, f"{here}.")


def test_docs_know_every_manifest_field():
    paths = [path.removeprefix("spec.") for path in _manifest_fields(InferenceService) if path.startswith("spec.")]
    manifest = (DOCS / "manifest.md").read_text()
    assert len(paths) > 100
    assert [path for path in paths if f"`{path}`" not in manifest] == []


@pytest.mark.parametrize(
    ("page", "row", "reasons"),
    [("status.md", "| `{}` |", conditions.REASONS), ("autoscaling.md", "`{}` |", decision.REASONS)],
)
def test_docs_know_every_reason_of_conditions_and_sizes(page, row, reasons):
    text = (DOCS / page).read_text()
    assert reasons
    assert [reason for reason in reasons if row.format(reason) not in text] == []


def test_every_reason_constant_is_explained():
    types = {"READY", "PREFILL_READY", "DECODE_READY", "GATEWAY_READY", "KV_TRANSPORT_READY", "PROGRESSING"}
    types |= {"ADAPTERS_READY", "KERNELS_READY", "KV_TIERS_READY", "ROUTE_READY", "SCALING_ACTIVE", "UPGRADED"}
    constants = {value for name, value in vars(conditions).items() if name.isupper() and isinstance(value, str)}
    assert constants - {vars(conditions)[name] for name in types} == set(conditions.REASONS)


@pytest.mark.parametrize("name", SOURCE_ROOTS)
def test_source_root_holds_one_package_and_nothing_loose(name):
    content = [path.name for path in (ROOT / name).iterdir() if path.name not in ("__pycache__", "README.md")]
    assert content == [f"legato_{name}"]
    assert (ROOT / name / f"legato_{name}" / "__init__.py").is_file()


def test_standard_library_operator_stays_importable():
    """From the repository root, too, where a folder has the same name."""
    code = "import operator; print(operator.__file__)"
    found = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert found.strip() == operator.__file__
