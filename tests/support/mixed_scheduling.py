"""Which file of tests the next free process of pytest-xdist runs."""

from typing import Any

from xdist.scheduler import LoadFileScheduling

SYSTEM = "tests/system/"


class MixedScheduling(LoadFileScheduling):
    """Whole services beside other tests, as long as there are both, and not beside one another.

    They often wait, and have deadlines that two of them on the same cores would miss. And files that share a service
    come in a row, in one process.
    """

    def _assign_work_unit(self, node: Any) -> None:
        other_runs_one = any(self._runs_service(other) for other in self.nodes if other is not node)
        fitting = (scope for scope in self.workqueue if _is_of_services(scope) is not other_runs_one)
        if (chosen := next(fitting, None)) is not None:
            self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)

    def _runs_service(self, node: Any) -> bool:
        left = [scope for scope, tests in self.assigned_work[node].items() if False in tests.values()]
        return any(map(_is_of_services, left))


def _is_of_services(scope: str) -> bool:
    return SYSTEM in scope
