"""The chart, with the images under test as `scripts/e2e` built and loaded them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import kube
from kube import Namespace

RELEASE = "legato"
OPERATOR = "app.kubernetes.io/name=legato-operator"
_TAG = os.environ.get("LEGATO_E2E_TAG", "e2e")
_REGISTRY = os.environ.get("LEGATO_E2E_REGISTRY", "")
_PREVIOUS = os.environ.get("LEGATO_E2E_PREVIOUS", "")


class Version(NamedTuple):
    """A commit of this repository, whose images have that tag."""

    root: Path
    tag: str

    @property
    def chart(self) -> Path:
        return self.root / "charts" / "legato"

    def image(self, name: str) -> str:
        return image(name, self.tag)


PRESENT = Version(Path(__file__).parents[2], _TAG)
# An older commit, where the clone has it.
PREVIOUS = Version(Path(_PREVIOUS), f"{_TAG}-previous") if _PREVIOUS else None


def image(name: str, tag: str = _TAG) -> str:
    """One of the images."""
    return f"{_REGISTRY}legato/{name}:{tag}"


def next_engine_image() -> str:
    """The engine's image by its second tag."""
    return image("engine", f"{_TAG}-next")


def install(
    system: Namespace, release: str = RELEASE, *values: str, wait: bool = True, version: Version = PRESENT
) -> None:
    """`wait`: until its operator is ready."""
    _helm("install", release, version, system, values, wait)


def upgrade(system: Namespace, *values: str) -> None:
    """To the present version, or to other values."""
    _helm("upgrade", RELEASE, PRESENT, system, values)


def revision(system: Namespace, release: str = RELEASE) -> str:
    """The last one of a release."""
    history = json.loads(kube.run("helm", "history", release, "--namespace", system.name, "--output", "json"))
    return str(max(int(each["revision"]) for each in history))


def roll_back(system: Namespace, to: str, release: str = RELEASE) -> None:
    """To an earlier revision of a release."""
    kube.run("helm", "rollback", release, to, "--namespace", system.name, "--wait", "--timeout", "2m")


def uninstall(system: Namespace, release: str = RELEASE) -> None:
    kube.run("helm", "uninstall", release, "--namespace", system.name, "--wait")


def keep(system: Namespace, release: str = RELEASE) -> None:
    """Go on with a release whose end was refused, as it was."""
    roll_back(system, revision(system, release), release)


def operators(system: Namespace) -> list[str]:
    """Names of the operator's pods that are not on their way out."""
    pods = system.list("pods", OPERATOR)
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def restart_operator(system: Namespace) -> None:
    """As if its pod had been evicted; another one starts."""
    names = kube.until(lambda: operators(system), "there is an operator")
    system.kubectl("delete", "pod", *names, "--wait=false", "--ignore-not-found")


def until_operating(system: Namespace) -> None:
    system.kubectl("rollout", "status", f"deployment/{RELEASE}", "--timeout=120s")


def _helm(verb: str, release: str, version: Version, system: Namespace, more: Sequence[str], wait: bool = True) -> None:
    registry = _REGISTRY.removesuffix("/")  # the chart puts a slash of its own
    values = [f"images.{name}.tag={version.tag}" for name in ("operator", "gateway", "engine")]
    settings = [word for value in [*values, f"images.registry={registry}", *more] for word in ("--set", value)]
    words = [verb, release, str(version.chart), "--namespace", system.name, *settings, "--timeout", "2m"]
    kube.run("helm", *words, *(["--wait"] if wait else []))
