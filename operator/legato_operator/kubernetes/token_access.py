"""Rights on services' tokens, namespace by namespace: no operator needs those on all Secrets of a cluster."""

import asyncio
from dataclasses import dataclass

from legato_operator.cluster import Cluster, Ref
from legato_operator.controller import Reconciles
from legato_operator.errors import Forbidden, ObjectNotFound
from legato_operator.kubernetes import kinds
from legato_operator.manifests import common

BINDING = "legato-operator-tokens"
_LOOKS = 20
_BETWEEN = 0.25  # seconds; a right is in force a moment after it was written


@dataclass(frozen=True)
class Account:
    """The operator's ServiceAccount."""

    namespace: str
    name: str


class TokenAccess:
    """Reconciles as another does, once the operator has bound `role` to itself in the service's namespace."""

    def __init__(self, reconciler: Reconciles, cluster: Cluster, role: str, account: Account) -> None:
        self._reconciler = reconciler
        self._cluster = cluster
        self._role = role
        self._account = account
        self._bound: set[str] = set()

    async def reconcile(self, ref: Ref) -> float | None:
        if ref.namespace not in self._bound:
            await self._bind(ref)
        try:
            return await self._reconciler.reconcile(ref)
        except Forbidden:
            self._bound.discard(ref.namespace)  # somebody may have taken the binding away
            raise

    async def record_failure(self, ref: Ref, error: Exception) -> None:
        await self._reconciler.record_failure(ref, error)

    async def _bind(self, ref: Ref) -> None:
        """A namespace that is ending takes nothing new, and needs no token any more."""
        try:
            await self._cluster.get(ref)
            await self._cluster.apply(self._binding(ref.namespace), common.MANAGER, force=True)
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

    async def _may_read(self, ref: Ref) -> bool:
        try:
            await self._cluster.get(Ref("Secret", ref.namespace, common.token_name_of(ref.name)))
        except ObjectNotFound:
            return True
        except Forbidden:
            return False
        return True

    def _binding(self, namespace: str) -> dict[str, object]:
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "namespace": self._account.namespace, "name": self._account.name}
        return {
            "apiVersion": kinds.KINDS["RoleBinding"].api_version,
            "kind": "RoleBinding",
            "metadata": {"name": BINDING, "namespace": namespace},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": self._role},
            "subjects": [subject],
        }
