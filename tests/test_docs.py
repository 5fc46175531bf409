"""Nothing can be set or measured that the docs do not know, and they know nothing else."""

import dataclasses
import re
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from legato_cli import bench, chat, logs, prepare, tune, up, validate
from legato_cli.recording import arguments as record
from legato_cli.simulation import arguments as simulate
from legato_engine import metrics as worker_metrics
from legato_engine import settings as worker_settings
from legato_engine.core.frames import CoreStatus, CoreTotals
from legato_engine.transfer.counts import Counts
from legato_gateway import errors
from legato_gateway import settings as gateway_settings
from legato_gateway.anthropic import schemas as messages
from legato_gateway.metrics import Metrics
from legato_gateway.openai import schemas
from legato_gateway.openai.responses.body import SHARED, ResponsesBody
from legato_operator.kubernetes import settings as operator_settings
from legato_operator.metrics.operator_metrics import OperatorMetrics
from legato_protocol import names, sampling_limits
from legato_protocol.load import Load

DOCS = Path(__file__).parents[1] / "docs"


def _rows(page: str, heading: str) -> set[str]:
    section = (DOCS / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


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
        (prepare, "settings.md", "`legato prepare`"),
        (record, "settings.md", "`legato record`"),
        (tune, "settings.md", "`legato tune`"),
        (up, "settings.md", "`legato up`"),
        (validate, "settings.md", "`legato validate`"),
        (logs, "settings.md", "`legato logs`"),
        (chat, "settings.md", "`legato chat`"),
    ],
)
def test_docs_know_every_flag_of_a_command(module, page, heading):
    parser = ArgumentParser()
    module.add_parser(parser.add_subparsers())
    (command,) = parser._subparsers._group_actions[0].choices.values()
    assert _rows(page, heading) == {flag for flag in command._option_string_actions if flag.startswith("--")} - {
        "--help"
    }


@pytest.mark.parametrize(("heading", "prefix"), [("Environment", "ENV_"), ("Headers of a request", "HEADER_")])
def test_docs_know_every_variable_and_header(heading, prefix):
    assert _rows("settings.md", heading) == {value for name, value in vars(names).items() if name.startswith(prefix)}


def test_docs_know_every_field_of_requests():
    text = (DOCS / "openai-api.md").read_text()
    both = {field.name for field in msgspec.structs.fields(schemas.SamplingBody)}
    told = {
        "both": _rows("openai-api.md", "Fields of both"),
        "chat": _rows("openai-api.md", "Chat only"),
        "completions": _rows("openai-api.md", "Completions only"),
        "no effect": set(re.findall(r"`(\w+)`", text.split("## Without effect\n")[1].split("\n## ")[0])),
        "unsupported": set(re.findall(r"`(\w+)`", text.split("## Not supported\n")[1])) - {"unsupported_value"},
    }
    chat = {field.name for field in msgspec.structs.fields(schemas.ChatBody)}
    completion = {field.name for field in msgspec.structs.fields(schemas.CompletionBody)}
    assert set().union(*told.values()) == chat | completion
    assert told["no effect"].isdisjoint(told["both"] | told["unsupported"] | told["chat"] | told["completions"])
    assert told["both"] <= both
    assert told["chat"] <= chat
    assert told["completions"] <= completion


def test_docs_know_every_field_of_responses():
    text = (DOCS / "responses.md").read_text()
    told, no_effect, unsupported = (
        _rows("responses.md", "Fields"),
        set(re.findall(r"`(\w+)`", text.split("## Without effect\n")[1].split("\n## ")[0])),
        set(re.findall(r"`(\w+)`", text.split("## Not supported\n")[1])) - {"unsupported_value"},
    )
    own, theirs = (
        {field.name for field in msgspec.structs.fields(body)} for body in (ResponsesBody, schemas.SamplingBody)
    )
    as_in_chats = set(re.findall(r"`(\w+)`", text.split("These are as in [chats]")[1].split("`n` may only")[0]))
    assert own - theirs | set(SHARED) == told | as_in_chats | no_effect | unsupported
    assert as_in_chats <= theirs
    assert no_effect.isdisjoint(told | as_in_chats | unsupported)


def test_docs_know_every_field_of_messages():
    text = (DOCS / "anthropic-api.md").read_text()
    told = {
        "fields": _rows("anthropic-api.md", "Fields"),
        "no effect": set(re.findall(r"`(\w+)`", text.split("## Without effect\n")[1].split("\n## ")[0])),
        "unsupported": set(re.findall(r"`(\w+)`", text.split("## Not supported\n")[1].split("\n## ")[0])),
    }
    fields = {field.name for field in msgspec.structs.fields(messages.MessagesBody)}
    assert fields <= set().union(*told.values())
    assert told["fields"] <= fields
    assert told["no effect"].isdisjoint(told["fields"] | told["unsupported"])


def test_docs_know_the_range_of_every_parameter():
    text = (DOCS / "openai-api.md").read_text()
    for name, limits in sampling_limits.RANGES.items():
        assert f"| `{name}` | {limits} |" in text


def test_docs_know_every_error_code_and_its_status():
    told = dict(re.findall(r"^\| `(\w+)` \| (\d{3}) \|", (DOCS / "errors.md").read_text(), re.MULTILINE))
    raised = {kind.code: str(kind.status) for kind in _subclasses(errors.GatewayError) if kind.code}
    by_path = {
        "not_found": "404",
        "model_not_found": "404",
        "method_not_allowed": "405",
    }  # a NotFound is given its code
    assert told == raised | by_path


def _subclasses(kind: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def test_docs_know_every_metric_of_the_gateway():
    assert _rows("metrics.md", "Gateway") == {metric.name for metric in Metrics().registry.collect()}


def test_docs_know_every_metric_of_the_operator():
    assert _rows("metrics.md", "Operator") == {metric.name for metric in OperatorMetrics().registry.collect()}


def test_docs_know_every_metric_of_a_worker():
    source = Path(worker_metrics.__file__).read_text()
    metrics = worker_metrics.WorkerMetrics()
    metrics.exposition(CoreStatus(Load(0, 0, 0, 1, 0, 0, 0), CoreTotals(), True), ready=True, gateways=0)
    told = {metric.name for metric in metrics.families()} | set(re.findall(r'"(legato_worker_[a-z_]+)"', source))
    assert _rows("metrics.md", "Worker") == told


def test_docs_know_everything_that_hand_offs_count():
    section = (DOCS / "metrics.md").read_text().split("## What the hand-off counts\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    told = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert told == {field.name for field in dataclasses.fields(Counts)}
