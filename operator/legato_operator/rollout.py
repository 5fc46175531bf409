"""How workers of an old pod revision are exchanged for new ones, one safe step at a time. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """Workers of one revision that are not leaving."""

    ready: int
    starting: int

    @property
    def total(self) -> int:
        return self.ready + self.starting


@dataclass(frozen=True)
class Step:
    """What may be done now: so many new workers started, so many of each kind sent away."""

    create: int = 0
    remove_old_starting: int = 0
    remove_old_ready: int = 0
    remove_new_starting: int = 0
    remove_new_ready: int = 0


def next_step(old: Count, new: Count, leaving: int, target: int, surge: int, unavailable: int) -> Step:
    """The next step towards `target` workers, all of them new.

    Never more than `target + surge` workers exist because of it, those that are `leaving` counted (they hold memory
    and GPUs until they are gone), and it never takes the ready ones below `target - unavailable`. Without old workers
    this is plain scaling.
    """
    existing = old.total + new.total + leaving
    create = max(0, min(target - new.total, target + surge - existing))
    needed = max(0, target - unavailable)
    spare = max(0, old.ready + new.ready - needed)
    # An old worker that is not ready may come back: it goes only when new ready ones make up for it.
    old_surplus = max(0, old.total + new.ready - needed)
    remove_old_starting = min(old.starting, old_surplus)
    remove_old_ready = min(old.ready, spare, old_surplus - remove_old_starting)
    new_surplus = max(0, new.total - target)
    remove_new_starting = min(new.starting, new_surplus)
    remove_new_ready = min(new.ready, new_surplus - remove_new_starting, spare - remove_old_ready)
    return Step(create, remove_old_starting, remove_old_ready, remove_new_starting, remove_new_ready)
