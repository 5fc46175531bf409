"""Permissions for services' tokens, per namespace, so that the operator has none for all Secrets of a cluster.

They are bound for a namespace's first service and removed with its last.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from legato_operator.api import kinds
from legato_operator.cluster import Cluster, Object, Ref, ref_of, uid_of
from legato_operator.controller import Reconciles
from legato_operator.errors import ClusterError, Conflict, Forbidden, Invalid, ObjectNotFound
from legato_operator.manifests import common
from legato_operator.observing.observe import find, list_known
from legato_protocol import names

FORMER_BINDING = "legato-operator-tokens"  # the binding of earlier operators, whatever the name of their release
OURS = {"app.kubernetes.io/managed-by": names.APP_OPERATOR}
_LOOKS = 20
_BETWEEN = 0.25  # seconds; a permission takes effect a moment after it was written


@dataclass(frozen=True)
class Account:
    """The operator's ServiceAccount."""

    namespace: str
    name: str


class TokenAccess:
    """Wraps a reconciler to first bind `role` to the operator in the service's namespace.

    The binding has the role's name, which is the release's. Bindings of other releases are removed, because only one
    release works in a namespace at a time.
    """

    def __init__(self, reconciler: Reconciles, cluster: Cluster, role: str, account: Account) -> None:
        """`cluster` reads without a cache, because these bindings are not watched."""
        self._reconciler = reconciler
        self._cluster = cluster
        self._role = role
        self._account = account
        self._bound: set[str] = set()

    async def reconcile(self, ref: Ref, woken: bool = True) -> float | None:
        if ref.namespace not in self._bound:
            await self._bind(ref)
        try:
            due = await self._reconciler.reconcile(ref, woken)
        except Forbidden:
            self._bound.discard(ref.namespace)  # somebody may have removed the binding
            raise
        if due is None:
            self._bound.discard(ref.namespace)  # before the check, so that a service created meanwhile binds again
            await self.remove_unused((ref.namespace,))
        return due

    async def record_failure(self, ref: Ref, error: Exception) -> None:
        await self._reconciler.record_failure(ref, error)

    async def remove_unused(self, namespaces: Iterable[str | None]) -> None:
        """Removes the bindings of namespaces without services; None stands for all namespaces."""
        for namespace in namespaces:
            bindings = await self._bindings(namespace)
            if bindings:
                services = (await list_known(self._cluster, names.INFERENCE_SERVICE, namespace)).items
                used = {ref_of(item).namespace for item in services}
                await self._remove(item for item in bindings if ref_of(item).namespace not in used)

    async def _bindings(self, namespace: str | None) -> tuple[Object, ...]:
        return (await self._cluster.list("RoleBinding", namespace, OURS)).items

    async def _remove(self, bindings: Iterable[Object]) -> None:
        for item in bindings:
            with contextlib.suppress(ObjectNotFound, Conflict):  # somebody else was faster
                await self._cluster.delete(Ref("RoleBinding", ref_of(item).namespace, ref_of(item).name), uid_of(item))

    async def _bind(self, ref: Ref) -> None:
        """Binds the role. A terminating namespace accepts no binding, and no longer needs a token."""
        try:
            await self._cluster.get(ref)
            await self._write(ref.namespace)
        except ObjectNotFound:
            return
        except Forbidden:
            if not await self._may_read(ref):
                return
        for _ in range(_LOOKS):
            if await self._may_read(ref):
                self._bound.add(ref.namespace)
                return
            await asyncio.sleep(_BETWEEN)

    async def _write(self, namespace: str) -> None:
        """Writes the binding, and removes bindings to other releases' roles, which cannot be changed."""
        wanted = self._binding(namespace)
        ref = ref_of(wanted)
        others = [item for item in await self._bindings(namespace) if item["roleRef"] != wanted["roleRef"]]
        former = await find(self._cluster, Ref("RoleBinding", namespace, FORMER_BINDING))
        await self._remove([*others, former] if former is not None else others)
        try:
            await self._cluster.apply(wanted, common.MANAGER, force=True)
        except Invalid:
            raise ClusterError(
                f"RoleBinding {ref.name} is not the operator's own, and binds another role: delete or rename it"
            ) from None

    async def _may_read(self, ref: Ref) -> bool:
        try:
            await self._cluster.get(Ref("Secret", ref.namespace, common.token_name_of(ref.name)))
        except ObjectNotFound:
            return True
        except Forbidden:
            return False
        return True

    def _binding(self, namespace: str) -> dict[str, Any]:
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "namespace": self._account.namespace, "name": self._account.name}
        return kinds.item(
            "RoleBinding",
            {"name": self._role, "namespace": namespace, "labels": dict(OURS)},
            roleRef={"apiGroup": group, "kind": "ClusterRole", "name": self._role},
            subjects=[subject],
        )
