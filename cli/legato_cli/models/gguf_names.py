"""The choice of one model among a repository's GGUF files. Pure.

Users choose as with llama.cpp's `-hf OWNER/NAME:Q4_K_M`: by a tag in the file's name, without regard to case, or by the
whole name. Unlike llama.cpp, a tag that matches no model or several is refused.
"""

import re
from collections.abc import Iterable

from legato_protocol.model_files import gguf_parts
from legato_protocol.model_files.gguf_parts import SUFFIX

DEFAULT = "Q4_K_M"  # the most common tag, and llama.cpp's default
_NO_MODEL = re.compile(r"(^|/)mmproj|imatrix", re.IGNORECASE)  # image encoders, statistics of a quantization
_MOST_LISTED = 40


class NoChoice(Exception):
    """The repository has no such GGUF file, or several. The text lists the files."""


def models(names: Iterable[str]) -> list[str]:
    """Returns the GGUF files with models; of split ones, the first parts."""
    return sorted({gguf_parts.parts(name)[0] for name in names if name.endswith(SUFFIX) and not _NO_MODEL.search(name)})


def choose(names: Iterable[str], choice: str = "") -> str:
    """Returns the model's file, of a split one the first part.

    `choice` is a name or a tag; if it is empty, the only file or the one tagged Q4_K_M. Raises NoChoice.
    """
    files = models(names)
    if choice.endswith(SUFFIX):
        wanted = [name for name in files if name == gguf_parts.parts(choice)[0]]
    elif not choice and len(files) == 1:
        wanted = files
    else:
        wanted = [name for name in files if _is_tagged(name, choice or DEFAULT)]
    if len(wanted) != 1:
        raise NoChoice(_refusal(choice, wanted, files))
    return wanted[0]


def listed(names: Iterable[str]) -> str:
    """Returns the GGUF files with models as one line."""
    files = models(names)
    more = len(files) - _MOST_LISTED
    return ", ".join(files[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _is_tagged(name: str, tag: str) -> bool:
    """True if the name has this tag between characters that tags do not have: Q4_K is not in Q4_K_M."""
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(tag)}(?![A-Za-z0-9_])", name, re.IGNORECASE) is not None


def _refusal(choice: str, wanted: list[str], files: list[str]) -> str:
    if not files:
        return "the repository has no GGUF files"
    if wanted:
        return f"several GGUF files match {choice or DEFAULT}: {listed(wanted)}; choose one by its name"
    if not choice:
        return f"several GGUF files and none tagged {DEFAULT}: {listed(files)}; choose one by its name or tag"
    return f"no GGUF file {choice}; allowed are the names and tags of {listed(files)}"
