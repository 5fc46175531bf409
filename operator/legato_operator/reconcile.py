"""One loop for one object: observe, plan, apply, one status patch, and when to look again."""

from legato_operator import conditions
from legato_operator.apply import apply, hold
from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Ref, is_leaving, uid_of
from legato_operator.conditions import Condition
from legato_operator.errors import Conflict, ManifestError, NotFound
from legato_operator.observe import Workers, observe
from legato_operator.placement import Placement
from legato_operator.plan import LOOK_AGAIN, LOOK_AGAIN_SETTLED, plan


class Reconciler:
    """Brings services closer to their specs. Holds no state of theirs."""

    def __init__(self, cluster: Cluster, workers: Workers, clock: Clock, placement: Placement) -> None:
        self._cluster = cluster
        self._workers = workers
        self._clock = clock
        self._placement = placement

    async def reconcile(self, ref: Ref) -> float | None:
        """One pass. Seconds until the next one is due at the latest, or None when the service is gone."""
        try:
            stored = await self._cluster.get(ref)
            if not is_leaving(stored):
                await hold(self._cluster, ref, uid_of(stored))
            return await self._pass(ref, uid_of(stored))
        except NotFound:
            return None
        except Conflict:
            return LOOK_AGAIN
        except ManifestError as error:
            return await self._tell_invalid(ref, error)

    async def _pass(self, ref: Ref, uid: str) -> float:
        observed = await observe(self._cluster, self._workers, self._clock, ref)
        made = plan(observed, self._placement)
        await apply(self._cluster, self._workers, observed, made.phases)
        await self._cluster.patch_status(ref, made.status, uid)
        return made.look_again

    async def _tell_invalid(self, ref: Ref, error: ManifestError) -> float:
        stored = await self._cluster.get(ref)
        news = [Condition(conditions.PROGRESSING, False, conditions.INVALID, str(error))]
        known = stored.get("status", {}).get("conditions", ())
        updated = conditions.update(known, news, stored["metadata"]["generation"], self._clock.timestamp())
        kept = [condition for condition in known if condition["type"] != conditions.PROGRESSING]
        await self._cluster.patch_status(ref, {"conditions": [*updated, *kept]}, uid_of(stored))
        return LOOK_AGAIN_SETTLED
