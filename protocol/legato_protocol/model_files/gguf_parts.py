"""Names of split GGUF files, `NAME-00001-of-00003.gguf`, as llama.cpp's gguf-split writes them.

The first part has the metadata, and each part the entries and data of some of the tensors.
"""

import re

SUFFIX = ".gguf"
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")  # before the suffix


def parts(name: str) -> tuple[str, ...]:
    """Returns the names of all parts of the file that `name` is a part of; of a file that is not split, its own."""
    stem = name.removesuffix(SUFFIX)
    match = _PART.search(stem)
    count = int(match[2]) if match else 0
    if match is None or not 1 <= int(match[1]) <= count:
        return (name,)
    start = stem[: match.start()]
    return tuple(f"{start}-{number:05}-of-{count:05}{SUFFIX}" for number in range(1, count + 1))


def model_name(name: str) -> str:
    """Returns a model's name after its file: without folder, number of the part and suffix."""
    return _PART.sub("", name.rpartition("/")[2].removesuffix(SUFFIX))
