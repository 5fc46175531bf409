"""The chart, with the images under test as `scripts/e2e` built and loaded them."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import kube
from kube import Namespace

OPERATOR = "app.kubernetes.io/name=legato-operator"
_TAG = os.environ.get("LEGATO_E2E_TAG", "e2e")
_REGISTRY = os.environ.get("LEGATO_E2E_REGISTRY", "")
_PREVIOUS = os.environ.get("LEGATO_E2E_PREVIOUS", "")
_IMAGES = ("operator", "gateway", "engine")


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
    """Returns the reference of one of the images."""
    return f"{_REGISTRY}legato/{name}:{tag}"


def next_engine_image() -> str:
    """Returns the engine's image by its second tag."""
    return image("engine", f"{_TAG}-next")


class Release(NamedTuple):
    """A release of the chart, in a namespace, with these values."""

    namespace: Namespace
    name: str
    values: tuple[str, ...]

    def install(self, version: Version = PRESENT) -> None:
        """Returns when its operator is ready."""
        self._apply("install", version)

    def upgrade(self, *values: str) -> None:
        """Upgrades to the present version, with more values."""
        self._apply("upgrade", PRESENT, *values)

    def revision(self) -> str:
        history = json.loads(self._helm("history", "--output", "json"))
        return str(max(int(each["revision"]) for each in history))

    def roll_back(self, revision: str) -> None:
        self._helm("rollback", revision, "--wait", "--timeout", "3m")

    def uninstall(self) -> None:
        self._helm("uninstall", "--wait")

    def operators(self) -> list[str]:
        """Returns the names of the operator's pods that are not on their way out."""
        pods = self.namespace.list("pods", f"{OPERATOR},app.kubernetes.io/instance={self.name}")
        return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def restart_operator(self) -> None:
        """Deletes the operator's pod, as an eviction does; another one starts."""
        for name in kube.until(self.operators, "there is an operator"):
            self.namespace.delete("pods", name)

    def until_operating(self) -> None:
        self.namespace.kubectl("rollout", "status", f"deployment/{self.name}", "--timeout=120s")

    def _apply(self, verb: str, version: Version, *more: str) -> None:
        registry = _REGISTRY.removesuffix("/")  # the chart puts a slash of its own
        values = [*(f"images.{name}.tag={version.tag}" for name in _IMAGES), f"images.registry={registry}"]
        values += ["operator.resources.requests.cpu=20m", *self.values, *more]
        settings = [word for value in values for word in ("--set", value)]
        self._helm(verb, str(version.chart), *settings, "--wait", "--timeout", "3m")

    def _helm(self, verb: str, *words: str) -> str:
        return kube.run("helm", verb, self.name, *words, "--namespace", self.namespace.name)
