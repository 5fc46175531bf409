"""Graphs without a GPU: the calls of kernels and operators that a step makes are recorded when it is captured, and
repeated with the same arguments, in the same memory. Nothing of it is computed anew, as with a CUDA graph.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

from legato_engine.backends.cuda.device import Interpreted

Call = Callable[[], object]


class RecordedGraphs(Interpreted):
    """An interpreter's device with such graphs. `allocating` are operators that returned new memory in a capture."""

    def __init__(self, processors: int = 4) -> None:
        super().__init__(processors)
        self.captured = self.replayed = 0
        self.allocating: set[str] = set()

    def capture(self, work: Call) -> Callable[[], None]:
        calls: list[Call] = []
        with _kernels_deferred(calls), Operators(calls, self.allocating):
            work()
        self.captured += 1

        def again() -> None:
            self.replayed += 1
            for call in calls:
                call()

        return again


class Operators(TorchDispatchMode):
    """Defers operators that write to one of their arguments; others only make views."""

    def __init__(self, calls: list[Call], allocating: set[str]) -> None:
        super().__init__()
        self._calls = calls
        self._allocating = allocating

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [*zip(operator._schema.arguments, args, strict=False)]
        given += [(each, kwargs[each.name]) for each in operator._schema.arguments if each.name in kwargs]
        for argument, value in given:
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._calls.append(partial(operator, *args, **kwargs))
                return value
        result = operator(*args, **kwargs)
        if not any(each.alias_info is not None for each in operator._schema.arguments):
            self._allocating.add(str(operator))
        return result


@contextmanager
def _kernels_deferred(calls: list[Call]) -> Iterator[None]:
    call = interpreter.GridExecutor.__call__

    def defer(executor: Any, *args: Any, **kwargs: Any) -> None:
        calls.append(partial(call, executor, *args, **kwargs))

    interpreter.GridExecutor.__call__ = defer
    try:
        yield
    finally:
        interpreter.GridExecutor.__call__ = call
