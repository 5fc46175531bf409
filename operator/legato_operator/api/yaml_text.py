"""YAML text to plain data, strictly: no key twice."""

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import yaml

from legato_operator.errors import ManifestError


class _Loader(yaml.SafeLoader):
    """PyYAML's own loader takes the last of two equal keys and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands here twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(text: str) -> Any:
    """What the text holds. Raises ManifestError with line and column where it is no YAML."""
    with _explained():
        return yaml.load(text, Loader=_Loader)  # a SafeLoader


def load_all(text: str) -> list[Any]:
    """What each document of the text holds; empty ones are left out. Raises ManifestError like `load`."""
    with _explained():
        return [found for found in yaml.load_all(text, Loader=_Loader) if found is not None]


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ManifestError([("", f"{where}{error.problem or error}")]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError([("", str(error))]) from None
