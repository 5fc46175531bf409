"""Hook of mkdocs.yml: pages that live outside docs/ appear on the site, and links that lead out of docs/ still work.

On the site, a link to a file that has no page there (source code, the licence) becomes plain text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {  # file in the repository: page of the site
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "benchmarks/README.md": "benchmarks.md",
    "designs/2026-11-21-first-slice.md": "designs/2026-11-21-first-slice.md",
    "designs/2026-11-21-kubernetes.md": "designs/2026-11-21-kubernetes.md",
    "designs/2026-11-23-structured-output.md": "designs/2026-11-23-structured-output.md",
    "designs/kv-groups.md": "designs/kv-groups.md",
    "engine/legato_engine/models/README.md": "add-a-model.md",
    "operator/legato_operator/api/README.md": "add-a-manifest-field.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside docs/."""
    root = Path(config.config_file_path).parent
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(root / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links between files of the repository as links between pages of the site."""
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")

    def linked(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        path, _, anchor = target.partition("#")
        target_path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        shown = PAGES.get(target_path) or (
            target_path.removeprefix("docs/") if target_path.startswith("docs/") else None
        )
        if shown is None:
            return text
        relative = posixpath.relpath(shown, posixpath.dirname(here) or ".")
        return f"[{text}]({relative}{'#' + anchor if anchor else ''})"

    return LINK.sub(linked, markdown)
