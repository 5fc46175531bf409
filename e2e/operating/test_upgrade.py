"""An older version, built from an older commit, is upgraded to the present one while three services answer."""

import contextlib
from collections.abc import Callable, Iterator

import helm
import httpx
import kube
import pytest
from kube import Namespace
from load import Load, answers
from restarts import Restarts
from service import PATIENCE, Service

SERVICES = ("first", "second", "third")
CRDS = ("inferenceservices.serving.legato.dev", "workerpools.serving.legato.dev")
ORIGIN = "https://chat.example.com"
NEWER = {"gateway": {"allowedOrigins": [ORIGIN]}}  # a field that the older version does not know
TURN_PATIENCE = 420.0  # seconds for the turns of three services


@pytest.fixture(scope="module")
def older(release: Namespace) -> Iterator[helm.Version]:
    """The older version, installed where there was none. Afterwards there is the present one again."""
    if helm.PREVIOUS is None:
        pytest.skip("no older version: scripts/e2e builds it from a commit that this clone lacks")
    helm.uninstall(release)
    kube.run("kubectl", "delete", "crd", *CRDS, "--timeout=60s")
    helm.install(release, version=helm.PREVIOUS)
    yield helm.PREVIOUS
    helm.upgrade(release)


@pytest.fixture(scope="module")
def services(older: helm.Version, serve: Callable[..., Service]) -> list[Service]:
    made = [serve(name, decode=2) for name in SERVICES]
    for service in made:
        service.until_settled()
        kube.until(lambda service=service: has_greeted(service), f"{service.name}'s gateway has greeted workers")
    return made


@pytest.fixture(scope="module")
def wanted(services: list[Service]) -> dict[str, str]:
    """What streams say: what paced workers say follows from the request alone."""
    return answers(services[0].client, services[0].name)


@pytest.fixture
def unharmed(
    older: helm.Version, services: list[Service], wanted: dict[str, str], namespace: Namespace
) -> Iterator[list[Load]]:
    """Streams to all of them, which run the older version so far. No stream fails or says anything else, and of no pool
    more than one worker is replaced at a time."""
    assert [images(service) for service in services] == [version_of(older)] * len(services)
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(Load(each.client, each.name, wanted, streams=3)) for each in services]
        restarts = stack.enter_context(Restarts(namespace))
        yield loads
    assert [load.failures for load in loads] == [[], [], []]
    assert restarts.most_turns == 1
    assert max(restarts.most_starting.values()) == 1
    assert restarts.fewest_ready == {
        **{(name, "prefill"): 1 for name in SERVICES},
        **{(name, "decode"): 2 for name in SERVICES},
    }


def has_greeted(service: Service) -> bool:
    return service.condition("GatewayReady").get("status") == "True"


def upgraded(service: Service) -> bool:
    return service.condition("Upgraded").get("status") == "True"


def images(service: Service) -> dict[str, set[str]]:
    """Of each role's pods."""
    return {
        role: {str(pod["spec"]["containers"][0]["image"]) for pod in service.found(role)}
        for role in ("gateway", "prefill", "decode")
    }


def version_of(version: helm.Version) -> dict[str, set[str]]:
    """The images of a service that runs it."""
    return {
        "gateway": {version.image("gateway")},
        **{role: {version.image("engine")} for role in ("prefill", "decode")},
    }


def until_all_run(services: list[Service], version: helm.Version) -> None:
    for service in services:
        kube.until(
            lambda service=service: images(service) == version_of(version) and upgraded(service),
            f"{service.name} runs {version.tag}",
            patience=TURN_PATIENCE,
        )
        service.until_settled()


def told(service: Service) -> str:
    return str(service.condition("Progressing").get("message", ""))


def keeps_newer(service: Service) -> bool:
    """Whether the API server keeps the field when it is set."""
    service.patch(NEWER)
    return "allowedOrigins" in service.object()["spec"]["gateway"]


def lets_pages_in(service: Service) -> bool:
    """Whether web pages of `ORIGIN` may read what it answers."""
    answer = httpx.get(f"{service.url}/v1/models", headers={"origin": ORIGIN}, timeout=PATIENCE)
    return answer.headers.get("access-control-allow-origin") == ORIGIN


def test_an_upgrade_is_taken_back_before_all_services_had_their_turns(
    release: Namespace, older: helm.Version, services: list[Service], unharmed: list[Load]
) -> None:
    first, second, third = services
    before = {service.name: service.workers() for service in services}
    revision = helm.revision(release)
    helm.upgrade(release, "upgrade.pause=1s")
    kube.until(lambda: "upgradeTurn" in second.object()["status"], "the second has its turn", patience=TURN_PATIENCE)
    kube.until(lambda: images(first) == version_of(helm.PRESENT), "the first runs the present version")
    assert keeps_newer(first)
    kube.until(lambda: lets_pages_in(first), "the field of the first has its effect")
    helm.roll_back(release, revision)
    until_all_run(services, older)
    assert not before[first.name] & first.workers()
    assert before[third.name] == third.workers()
    for load in unharmed:
        load.until_more(3)


def test_three_services_take_the_present_version_over_in_turns(
    release: Namespace, older: helm.Version, services: list[Service], unharmed: list[Load]
) -> None:
    """Its CRDs come first, and the older operator goes on with a service that has a field of theirs."""
    first, second, _ = services
    assert not keeps_newer(first)
    kube.run("kubectl", "apply", "--server-side", "--force-conflicts", "--filename", str(helm.PRESENT.root / "crds"))
    kube.until(lambda: keeps_newer(first), "the CRDs are the present ones")
    kube.until(
        lambda: "gateway.allowedOrigins" in told(first), "the older operator says that it does not know the field"
    )
    for replicas in (3, 2):
        first.scale("decode", replicas)
        first.until_pods("decode", replicas)
    assert images(first) == version_of(older)
    assert "does not know" not in told(second), "a manifest that uses no newer field has none"
    assert not lets_pages_in(first)
    helm.upgrade(release, "upgrade.pause=1s")
    until_all_run(services, helm.PRESENT)
    assert lets_pages_in(first)
    assert keeps_newer(second)
    kube.until(lambda: lets_pages_in(second), "the field of the second has its effect")
    for load in unharmed:
        load.until_more(3)
