"""Repositories of the Hugging Face hub at one commit, and the parts of them that a folder may hold.

A folder is complete once it has the mark of its content, a file that is written last.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from legato_protocol.names import hub_folder
from legato_protocol.settings import values

PREFIX = "hf:"
HEADER = ("*.json", "*.jinja")  # what gateways need
CONFIGS = ("config.json", "tokenizer.json")
WEIGHTS = ("*.safetensors",)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


class HubRefuses(Exception):
    """The request is invalid, missing or not allowed, and a retry does not help. The text has the reason."""


class HubUnreachable(Exception):
    """The hub cannot be reached; a retry may help, and downloads only the missing files. The text has the reason."""


@dataclass(frozen=True)
class HubContent:
    """The files to download from a repository: all that match `patterns`. Each of `needed` must match at least one.

    A complete folder has the mark of this content, or of one that includes it (`part_of`).
    """

    mark: str
    patterns: tuple[str, ...]
    needed: tuple[str, ...]
    part_of: tuple[str, ...] = ()


MODEL = HubContent("whole", HEADER + WEIGHTS, CONFIGS + WEIGHTS)
MODEL_HEADER = HubContent("header", HEADER, CONFIGS, part_of=(MODEL.mark,))
ADAPTER = HubContent("adapter", ADAPTER_FILES, ADAPTER_FILES)
OUTLINE = HubContent("outline", (), CONFIGS + WEIGHTS, part_of=(MODEL.mark,))
MARKS = tuple(content.mark for content in (MODEL, MODEL_HEADER, ADAPTER))


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


def parse(spec: str) -> HubSnapshot:
    """Parses `hf:OWNER/NAME@COMMIT`. Raises HubRefuses."""
    repo, _, commit = spec.removeprefix(PREFIX).partition("@")
    return HubSnapshot(repo, commit)


def mark_file(folder: Path, mark: str) -> Path:
    """Returns the path of a mark."""
    return folder / f".legato-{mark}"


def marked(folder: Path, mark: str) -> str:
    """Returns the snapshot whose content a mark stands for, as text; empty without the mark."""
    path = mark_file(folder, mark)
    return path.read_text() if path.is_file() else ""
