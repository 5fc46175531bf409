"""The Secret of a service's token is deleted, then edited, while streams run through two gateways: none fails."""

import base64

import kube
from kube import Object
from load import Load, answers
from service import Service

EDITED = b"written-by-hand"


def test_a_deleted_token_is_restored_and_an_edited_one_comes_into_use(service: Service, network: None) -> None:
    name = f"{service.name}-token"
    with Load(service.client, service.name, answers(service.client, service.name)) as load:
        before = _data(service, name)
        service.namespace.delete("secrets", name)
        kube.until(lambda: _data(service, name).get("token") == before["token"], "the Secret is as it was")
        service.until_event("TokenRestored")
        service.namespace.patch("secrets", name, {"data": {"token": base64.b64encode(EDITED).decode()}})
        service.until_event("TokenEdited")
        service.until_refreshed(lambda: service.has_event("TokenRotated"), "all use the edited token")
        assert _data(service, name) == {"token": EDITED}
        service.until_settled()
        load.until_more(8)
    assert load.failures == []


def _data(service: Service, name: str) -> dict[str, bytes]:
    """Returns the content of a Secret; empty while it does not exist."""
    secret: Object = service.namespace.get("secrets", name)
    return {key: base64.b64decode(value) for key, value in secret.get("data", {}).items()}
