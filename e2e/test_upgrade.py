"""An older version, built from an older commit, is upgraded to the present one while two services answer.

Both are releases for one namespace, with the present CRDs: how a release upgrades these is tested on an API server.
"""

import contextlib
from collections.abc import Iterator

import helm
import httpx
import kube
import paced
import pytest
from helm import Release
from kube import Namespace
from load import Load, answers
from restarts import Restarts
from service import PATIENCE, Service

VERSION = helm.PREVIOUS  # of the fixture `operator`
SERVICES = ("first", "second")
ORIGIN = "https://chat.example.com"
NEWER = {"gateway": {"allowedOrigins": [ORIGIN]}}  # a field that the older version does not know
# The older version does not know the present CRDs' defaults of these fields.
ENGINE = {"blockSize": 16, "chunkTokens": 256}
SCALING = {**paced.PAIR, "decode": {"min": 2, "max": 3}}
AT_ONCE = "upgrade.pause=1s"


@pytest.fixture(scope="module")
def services(network: None, operator: Release, namespace: Namespace) -> list[Service]:
    made = [Service(namespace, name) for name in SERVICES]
    for service in made:
        namespace.apply(paced.manifest(service.name, engine=ENGINE, scaling=SCALING))
    for service in made:
        service.until_settled()
        service.until_gateways_ready()
    return made


@pytest.fixture(scope="module")
def expected(services: list[Service]) -> dict[str, str]:
    """The texts of all streams: tokens of paced workers follow from the request alone."""
    return answers(services[0].client, services[0].name)


@pytest.fixture
def unharmed(services: list[Service], expected: dict[str, str], namespace: Namespace) -> Iterator[None]:
    """Streams to all services, which run the older version so far. No stream fails or says anything else, one service
    has its turn at a time, and in its pools one worker at a time is replaced."""
    assert helm.PREVIOUS is not None
    assert [images(service) for service in services] == [images_of(helm.PREVIOUS)] * len(services)
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(Load(each.client, each.name, expected, streams=2)) for each in services]
        restarts = stack.enter_context(Restarts(namespace))
        yield
        for load in loads:
            load.until_more(2)
    assert [load.failures for load in loads] == [[], []]
    assert restarts.most_turns == 1
    assert max(restarts.most_starting.values()) == 1
    assert restarts.fewest_ready == {
        **{(name, "prefill"): 1 for name in SERVICES},
        **{(name, "decode"): 2 for name in SERVICES},
    }


def images(service: Service) -> dict[str, set[str]]:
    return {
        role: {str(pod["spec"]["containers"][0]["image"]) for pod in service.found(role)}
        for role in ("gateway", "prefill", "decode")
    }


def images_of(version: helm.Version) -> dict[str, set[str]]:
    """Returns the images of a service that runs a version."""
    workers = {role: {version.image("engine")} for role in ("prefill", "decode")}
    return {"gateway": {version.image("gateway")}, **workers}


def until_run(services: list[Service], version: helm.Version) -> None:
    for service in services:
        kube.until(
            lambda service=service: (
                images(service) == images_of(version) and service.condition("Upgraded").get("status") == "True"
            ),
            f"{service.name} runs {version.tag}",
        )
        service.until_settled()


def lets_pages_in(service: Service) -> bool:
    """True if web pages of `ORIGIN` may read its answers."""
    answer = httpx.get(f"{service.url}/v1/models", headers={"origin": ORIGIN}, timeout=PATIENCE)
    return answer.headers.get("access-control-allow-origin") == ORIGIN


@pytest.mark.usefixtures("unharmed")
def test_an_upgrade_is_taken_back_in_the_middle_of_the_first_turn(operator: Release, services: list[Service]) -> None:
    assert helm.PREVIOUS is not None
    first, second = services
    present = helm.PRESENT.image("engine")
    before, revision = second.workers(), operator.revision()
    operator.upgrade(AT_ONCE)
    kube.until(lambda: present in set().union(*images(first).values()), "the first takes the present version over")
    operator.roll_back(revision)
    until_run(services, helm.PREVIOUS)
    assert before == second.workers()


@pytest.mark.usefixtures("unharmed")
def test_services_take_the_present_version_over_in_turns(operator: Release, services: list[Service]) -> None:
    """The older operator goes on with a service that has a field of newer CRDs, and says that it does not know it."""
    assert helm.PREVIOUS is not None
    first, second = services
    first.patch(NEWER)
    kube.until(
        lambda: "gateway.allowedOrigins" in str(first.condition("Progressing").get("message")),
        "the older operator says that it does not know the field",
    )
    for replicas in (3, 2):
        first.scale("decode", replicas)
        first.until_pods("decode", replicas)
    assert images(first) == images_of(helm.PREVIOUS)
    assert not lets_pages_in(first)
    operator.upgrade(AT_ONCE)
    until_run(services, helm.PRESENT)
    kube.until(lambda: lets_pages_in(first), "the field has its effect")
    assert not lets_pages_in(second)
