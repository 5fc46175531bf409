"""The chart, with the images under test as `scripts/e2e` built and loaded them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import kube
from kube import Namespace

CHART = Path(__file__).parents[2] / "charts" / "legato"
RELEASE = "legato"
OPERATOR = "app.kubernetes.io/name=legato-operator"
_TAG = os.environ.get("LEGATO_E2E_TAG", "e2e")
_REGISTRY = os.environ.get("LEGATO_E2E_REGISTRY", "")


def image(name: str, tag: str = _TAG) -> str:
    """One of the images."""
    return f"{_REGISTRY}legato/{name}:{tag}"


def next_engine_image() -> str:
    """The engine's image by its second tag."""
    return image("engine", f"{_TAG}-next")


def install(system: Namespace, release: str = RELEASE, *values: str, wait: bool = True) -> None:
    """`wait`: until its operator is ready."""
    _helm("install", release, CHART, system, values, wait)


def upgrade(chart: Path, system: Namespace, *values: str) -> None:
    """To another version of the chart, or to other values."""
    _helm("upgrade", RELEASE, chart, system, values)


def uninstall(system: Namespace, release: str = RELEASE) -> None:
    kube.run("helm", "uninstall", release, "--namespace", system.name, "--wait")


def keep(system: Namespace, release: str = RELEASE) -> None:
    """Go on with a release whose end was refused, as it was."""
    history = json.loads(kube.run("helm", "history", release, "--namespace", system.name, "--output", "json"))
    last = max(int(each["revision"]) for each in history)
    kube.run("helm", "rollback", release, str(last), "--namespace", system.name, "--wait", "--timeout", "2m")


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


def _helm(verb: str, release: str, chart: Path, system: Namespace, more: Sequence[str], wait: bool = True) -> None:
    registry = _REGISTRY.removesuffix("/")  # the chart puts a slash of its own
    values = [f"images.{name}.tag={_TAG}" for name in ("operator", "gateway", "engine")]
    settings = [word for value in [*values, f"images.registry={registry}", *more] for word in ("--set", value)]
    words = [verb, release, str(chart), "--namespace", system.name, *settings, "--timeout", "2m"]
    kube.run("helm", *words, *(["--wait"] if wait else []))
