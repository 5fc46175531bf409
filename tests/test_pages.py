"""Pages for people: their links lead somewhere, and what they name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    page
    for folder in ("*", "docs/*", "benchmarks/**/*", "designs/*", "examples/*", "*/legato_*/**/*")
    for page in sorted(ROOT.glob(f"{folder}.md"))
]

PAGES_WITH_PATHS = (
    "CONTRIBUTING.md",
    "engine/legato_engine/models/README.md",
    "engine/legato_engine/transfer/README.md",
    "operator/legato_operator/api/README.md",
)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _prose(page: Path) -> str:
    """A page without its fences."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_to_a_file_and_a_heading_and_every_fence_is_closed(page):
    assert len(re.findall(r"^```", page.read_text(), re.MULTILINE)) % 2 == 0
    for path in re.findall(r"\.\./[\w./-]+", page.read_text()):
        assert (page.parent / path).resolve().is_relative_to(ROOT), f"{path} is outside of the repository"
    text = _prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in _anchors(found), target


def _anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [ROOT / page for page in PAGES_WITH_PATHS], ids=_name)
def test_files_and_folders_that_a_page_names_exist(page):
    words = [word for span in re.findall(r"`([^`]+)`", _prose(page)) for word in span.split()]
    paths = [
        word
        for word in words
        if re.fullmatch(r"(?!build)[a-z]+/[\w./-]+", word) and (ROOT / word.split("/")[0]).is_dir()
    ]
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).exists(), path


def test_glossary_is_in_order_and_defines_each_term_once():
    terms = re.findall(r"^\| \*\*(.+)\*\* \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 30
    assert terms == sorted(set(terms), key=str.lower)


def _told(page: str) -> set[str]:
    """The first cells of a page's tables."""
    return set(re.findall(r"^\| `(\w+)` \|", (DOCS / page).read_text(), re.MULTILINE))


def test_troubleshooting_names_metrics_and_error_codes_that_exist():
    text = (DOCS / "troubleshooting.md").read_text()
    for named, page in (
        (re.findall(r"`(legato_(?:gateway|worker|operator)_\w+)`", text), "metrics.md"),
        (re.findall(r"\d{3} `(\w+)`", text), "errors.md"),
    ):
        assert named
        assert set(named) <= _told(page)
