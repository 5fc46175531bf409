"""API keys in a Secret, made by `legato api-key`."""

import json
import sys
from typing import NamedTuple

import kube
from kube import Namespace, Object

SECRET = "keys"


class Key(NamedTuple):
    """A key of a tenant, and the tenant's entry in api-keys.json."""

    text: str
    tenants: Object


def new(tenant: str) -> Key:
    first, second = kube.run(sys.executable, "-m", "legato_cli.main", "api-key", tenant).splitlines()
    return Key(first.partition(": ")[2].strip(), json.loads(second.partition(": ")[2])["tenants"])


def store(namespace: Namespace, *keys: Key) -> None:
    """Stores keys of different tenants, instead of the ones before."""
    file = json.dumps({"tenants": {tenant: entry for key in keys for tenant, entry in key.tenants.items()}})
    text = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": {"api-keys.json": file}}
    namespace.apply(json.dumps(text))
