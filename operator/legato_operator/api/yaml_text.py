"""Parses YAML text to plain data, strictly: duplicate keys are errors."""

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import yaml

from legato_operator.errors import ManifestError


class _Loader(yaml.SafeLoader):
    """A safe loader that rejects duplicate keys, of which PyYAML's own silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is a duplicate key", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(text: str) -> Any:
    """Returns the data of one document. Raises ManifestError with line and column of invalid YAML."""
    with _explained():
        return yaml.load(text, Loader=_Loader)  # a SafeLoader


def load_all(text: str) -> list[Any]:
    """Returns the data of each document that is not empty. Raises ManifestError like `load`."""
    with _explained():
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]


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
