"""The shape of the repository: source roots, and that nothing can be set which the docs do not know."""

import operator
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from legato_operator.api import conditions, field_errors
from legato_operator.api.resources import InferenceService
from legato_operator.autoscaler import decision

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = ("protocol", "telemetry", "grammar", "engine", "gateway", "operator", "cli")
MANIFEST = (ROOT / "docs" / "manifest.md").read_text()


@pytest.mark.parametrize("name", SOURCE_ROOTS)
def test_source_root_holds_one_package_and_nothing_loose(name):
    content = [path.name for path in (ROOT / name).iterdir() if path.name not in ("__pycache__", "README.md")]
    assert content == [f"legato_{name}"]
    assert (ROOT / name / f"legato_{name}" / "__init__.py").is_file()


def test_standard_library_operator_stays_importable():
    """From the repository root, too, where a folder has the same name."""
    found = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == operator.__file__


def _fields(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        here = f"{path}{field.alias}"
        yield here
        if inner := field_errors.model_in(field.annotation):
            yield from _fields(inner, f"{here}.")


def test_docs_know_every_manifest_field():
    paths = [path.removeprefix("spec.") for path in _fields(InferenceService) if path.startswith("spec.")]
    assert len(paths) > 100
    assert [path for path in paths if f"`{path}`" not in MANIFEST] == []


@pytest.mark.parametrize(
    ("page", "row", "reasons"),
    [("status.md", "| `{}` |", conditions.REASONS), ("autoscaling.md", "`{}` |", decision.REASONS)],
)
def test_docs_know_every_reason_of_conditions_and_sizes(page, row, reasons):
    text = (ROOT / "docs" / page).read_text()
    assert reasons
    assert [reason for reason in reasons if row.format(reason) not in text] == []


def test_every_reason_constant_is_explained():
    types = {"READY", "PREFILL_READY", "DECODE_READY", "GATEWAY_READY", "KV_TRANSPORT_READY", "PROGRESSING"}
    types |= {"ADAPTERS_READY", "ROUTE_READY", "SCALING_ACTIVE", "UPGRADED"}
    constants = {value for name, value in vars(conditions).items() if name.isupper() and isinstance(value, str)}
    assert constants - {vars(conditions)[name] for name in types} == set(conditions.REASONS)


def test_licence_is_apache_2():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
