"""`legato validate`: checks manifests without a cluster."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legato_cli.machine import gpus
from legato_cli.services import options
from legato_protocol import names
from legato_protocol.settings import flags

if TYPE_CHECKING:
    from legato_operator.api.resources import Spec

REFUSED = 1
Problem = tuple[str, str]  # path of the field, and the message
# Fields that the API server adds: the output of `kubectl get -o yaml` is valid as well.
_OF_SERVER = frozenset(
    {"creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generation"}
    | {"managedFields", "ownerReferences", "resourceVersion", "uid"}
)
HELP = "check manifests without a cluster"
DESCRIPTION = (
    "Checks every InferenceService in the files by the rules of the API server and the operator. "
    "Other objects in the files are left out. Exit code 1: at least one cannot be used."
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument("files", nargs="+", type=flags.FILE, metavar="FILE", help="a YAML file; - reads standard input")
    parser.add_argument("--local", action="store_true", help="check for `legato up` instead of Kubernetes")
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 1: at least one manifest cannot be used, or a file holds none."""
    results = [checked for file in args.files for checked in check(file, args.local)]
    if args.output == options.JSON:
        print(json.dumps([checked.message() for checked in results], indent=2))
    else:
        for checked in results:
            for line in checked.lines():
                print(line, file=sys.stderr if checked.problems else sys.stdout)
    return REFUSED if any(checked.problems for checked in results) else 0


@dataclass(frozen=True)
class Checked:
    """One InferenceService of a file, or, without a name, the problems of the file."""

    file: str
    name: str
    problems: Sequence[Problem]
    without_effect: Sequence[Problem] = ()  # fields that have or may have no effect there
    unmet: Sequence[Problem] = ()  # objectives that no worker meets, if its speed is known

    def lines(self) -> Iterator[str]:
        """Yields the result as text."""
        about = f"{self.file}: {self.name}" if self.name else self.file
        if not self.problems:
            yield f"{about}: valid"
            yield from (f"{about}: {path}: {message}" for path, message in (*self.without_effect, *self.unmet))
        for path, message in self.problems:
            yield f"{about}: {path}: {message}" if path else f"{about}: {message}"

    def message(self) -> dict[str, Any]:
        """Returns the result as JSON."""
        return {
            "file": self.file,
            "name": self.name,
            "valid": not self.problems,
            "problems": _messages(self.problems),
            "withoutEffect": _messages(self.without_effect),
            "unmetObjectives": _messages(self.unmet),
        }


def _messages(problems: Sequence[Problem]) -> list[dict[str, str]]:
    return [{"path": path, "message": message} for path, message in problems]


def check(file: Path, local: bool) -> Iterator[Checked]:
    """Yields a result for each InferenceService of a file, or one for the file."""
    from legato_cli.manifests import manifest_file
    from legato_operator.api import yaml_text
    from legato_operator.errors import ManifestError

    try:
        items = list(_items(yaml_text.load_all(manifest_file.read_text(file))))
    except ManifestError as error:
        yield Checked(str(file), "", error.problems)
        return
    mine = [item for item in items if _is_ours(item)]
    if not mine:
        yield Checked(str(file), "", [("", f"no {names.INFERENCE_SERVICE} of {names.API_VERSION} is in this file")])
    for item in mine:
        yield Checked(str(file), _name(item), *judged(item, local, file.resolve().parent))


def judged(item: Any, local: bool, folder: Path) -> tuple[Sequence[Problem], Sequence[Problem], Sequence[Problem]]:
    """Returns an object's problems, fields without effect and unmet objectives, as in `Checked`. It is in `folder`.

    Problems are violated types and rules, or else valid fields that are not available there.
    """
    from legato_cli.manifests import draft_tokens, unmet_objectives
    from legato_operator.api import parsing
    from legato_operator.api.quantities import GPU
    from legato_operator.errors import ManifestError
    from legato_operator.planning import checks

    try:
        service = parsing.read_mapping(_as_written(item))
    except ManifestError as error:
        return error.problems, (), ()
    spec = service.spec
    unmet = unmet_objectives.of_paced(spec)
    if not local:
        refused = [*checks.unavailable(spec, in_containers=True), *checks.contradictions(spec, _devices(spec), None)]
        other = "is refused by an operator whose gpuResources do not name it"
        return refused, [(path, f"{name} {other}") for path, name in checks.uncounted(spec)], unmet
    visible = len(gpus.visible(os.environ))
    refused = [*checks.unavailable(spec), *checks.contradictions(spec, (GPU,), visible)]
    refused = refused or list(draft_tokens.problems(service, folder))
    return refused, checks.without_effect(spec, bool(visible)), unmet


def _items(documents: Sequence[Any]) -> Iterator[Any]:
    """Yields the objects of documents, including objects in lists as `kubectl get` prints them."""
    for document in documents:
        listed = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
        yield from listed if isinstance(listed, list) else [document]


def _is_ours(item: Any) -> bool:
    """Returns True if it is, or was meant to be, one:

    KServe's kind has the same name, and a missing kind is a mistake.
    """
    if not isinstance(item, Mapping) or "kind" not in item:
        return True
    version = str(item.get("apiVersion", names.API_VERSION))
    return version.startswith(f"{names.API_GROUP}/") and item["kind"] != names.WORKER_POOL


def _name(item: Any) -> str:
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return str(name or "")


def _as_written(item: Any) -> Any:
    if not isinstance(item, Mapping) or not isinstance(item.get("metadata"), Mapping):
        return item
    metadata = {key: value for key, value in item["metadata"].items() if key not in _OF_SERVER}
    return {**{key: value for key, value in item.items() if key != "status"}, "metadata": metadata}


def _devices(spec: "Spec") -> tuple[str, ...]:
    """Returns the resources that may be GPUs on a cluster: all requested devices except RDMA devices."""
    from legato_operator.api import roles
    from legato_operator.api.quantities import GPU

    resources = [roles.pool(spec, role).resources for role in roles.with_pool(spec)]
    names = {name for each in resources for name in (*each.requests, *each.limits) if "/" in name}
    rdma = {spec.transfer.rdma.resource} if spec.transfer.rdma is not None else set()
    return (GPU, *sorted(names - rdma - {GPU}))
