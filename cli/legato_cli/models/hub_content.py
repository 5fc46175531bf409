"""Repositories of the Hugging Face hub at one commit, and the parts of them that a folder may hold.

A folder is complete once it has the mark of its content, a file that is written last.
"""

import glob
import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from legato_protocol.model_files import gguf_parts
from legato_protocol.names import hub_folder
from legato_protocol.settings import values

PREFIX = "hf:"
HEADER = ("*.json", "*.jinja", "additional_chat_templates/*.jinja")  # what gateways need
CONFIGS = ("config.json", "tokenizer.json")
WEIGHTS = ("*.safetensors",)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
IGNORED = ("consolidated*",)  # another format of the same weights
_MARK = ".legato-"
HEADER_SUFFIX = ".header"  # of the beginning of a GGUF file, without weights
LOCK = ".legato-lock"
_WHOLE = "whole"


class HubRefuses(Exception):
    """The request is invalid, missing or not allowed, and a retry does not help. The text has the reason."""


class HubUnreachable(Exception):
    """The hub cannot be reached; a retry may help, and downloads only the missing files. The text has the reason."""


@dataclass(frozen=True)
class HubContent:
    """The files to download from a repository: all that match `patterns`. Each of `needed` must match at least one.

    A complete folder has the mark of this content, or of one that includes it (`part_of`). `gguf` is the name of the
    model's GGUF file, of a split one the first part; it is empty for other contents.
    """

    mark: str
    patterns: tuple[str, ...]
    needed: tuple[str, ...]
    part_of: tuple[str, ...] = ()
    gguf: str = ""

    def wants(self, name: str) -> bool:
        """Returns True if this content includes the file with this path in the repository."""
        return _matches(name, self.patterns) and not _matches(name, IGNORED)

    def wants_weights(self, name: str) -> bool:
        """Returns True if this content includes the file, and it has weights in safetensors."""
        return self.wants(name) and _matches(name, WEIGHTS)

    def lacking(self, names: list[str]) -> str:
        """Returns the first needed pattern that none of the names matches; empty if each matches one."""
        return next((each for each in self.needed if not any(_matches(name, (each,)) for name in names)), "")

    def path(self, folder: Path) -> Path:
        """Returns the path of the model in a folder with this content."""
        return folder / self.gguf


MODEL = HubContent(_WHOLE, HEADER + WEIGHTS, CONFIGS + WEIGHTS)
MODEL_HEADER = HubContent("header", HEADER, CONFIGS, part_of=(MODEL.mark,))
ADAPTER = HubContent("adapter", ADAPTER_FILES, ADAPTER_FILES)
OUTLINE = HubContent("outline", WEIGHTS, WEIGHTS, part_of=(MODEL.mark,))


def gguf(file: str) -> HubContent:
    """Returns the content of a GGUF file, with all parts of a split one."""
    parts = gguf_parts.parts(file)
    patterns = tuple(glob.escape(name) for name in parts)
    return HubContent(_of_file(_WHOLE, parts[0]), patterns, patterns, gguf=parts[0])


def gguf_header(file: str) -> HubContent:
    """Returns the content of a GGUF file's header, of a split one only of its first part."""
    whole = gguf(file)
    mark = _of_file(MODEL_HEADER.mark, whole.gguf)
    return HubContent(mark, whole.patterns[:1], whole.needed[:1], (whole.mark,), whole.gguf)


def gguf_outline(file: str) -> HubContent:
    """Returns the content of a GGUF file's outline, with all parts of a split one."""
    whole = gguf(file)
    mark = _of_file(OUTLINE.mark, whole.gguf)
    return HubContent(mark, whole.patterns, whole.needed, (whole.mark,), whole.gguf)


@dataclass(frozen=True)
class HubSnapshot:
    """A repository at one commit. Raises HubRefuses for an invalid name or commit."""

    repo: str
    commit: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", self.repo, re.ASCII) or ".." in self.repo:
            raise HubRefuses(str(values.invalid("repository", self.repo, "OWNER/NAME")))
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            raise HubRefuses(
                str(values.invalid("revision", self.commit, "a commit of 40 hex digits; branches and tags may change"))
            )

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}@{self.commit}"

    def folder(self, cache: Path) -> Path:
        """Returns its folder in the cache."""
        return cache / hub_folder(self.repo, self.commit)

    def complete(self, folder: Path, content: HubContent) -> bool:
        """Returns True if `folder` has all of this content."""
        return any(marked(folder, mark) == str(self) for mark in (content.mark, *content.part_of))

    def gguf_files(self, folder: Path) -> list[str]:
        """Returns the GGUF files in `folder` that are complete; of split ones, the first parts."""
        names = {str(path.relative_to(folder)) for path in folder.rglob(f"*{gguf_parts.SUFFIX}")}
        return [name for name in sorted(names) if gguf(name).gguf == name and self.complete(folder, gguf(name))]


def parse(spec: str) -> tuple[HubSnapshot, str]:
    """Parses `hf:OWNER/NAME@COMMIT` or `hf:OWNER/NAME:FILE.gguf@COMMIT`: the snapshot and the file, which may be empty.

    Raises HubRefuses.
    """
    name, _, commit = spec.removeprefix(PREFIX).partition("@")
    repo, _, file = name.partition(":")
    if file:
        check_file(file)
    return HubSnapshot(repo, commit), file


def check_file(file: str) -> None:
    """Raises HubRefuses unless this is the path of a GGUF file within a repository."""
    if not re.fullmatch(r"\w[\w.+=-]*(/\w[\w.+=-]*)*\.gguf", file, re.ASCII):
        raise HubRefuses(str(values.invalid("file", file, "the path of a GGUF file in the repository")))


def mark_file(folder: Path, mark: str) -> Path:
    """Returns the path of a mark."""
    return folder / f"{_MARK}{mark}"


def marked(folder: Path, mark: str) -> str:
    """Returns the snapshot whose content a mark stands for, as text; empty without the mark."""
    path = mark_file(folder, mark)
    return path.read_text() if path.is_file() else ""


def snapshots_in(folder: Path) -> set[str]:
    """Returns the snapshots that a folder's marks name, as text."""
    return {path.read_text() for path in folder.glob(f"{_MARK}*") if path.name != LOCK}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    """True if a pattern matches the path; only files of the top folder match a pattern without a folder."""
    return any(name.count("/") == pattern.count("/") and fnmatch(name, pattern) for pattern in patterns)


def _of_file(mark: str, file: str) -> str:
    return f"{mark}-{file.replace('/', '--')}"
