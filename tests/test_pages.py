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


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_to_a_file_and_a_heading_and_every_fence_is_closed(page):
    assert len(re.findall(r"^```", page.read_text(), re.MULTILINE)) % 2 == 0
    for path in re.findall(r"\.\./[\w./-]+", page.read_text()):
        assert (page.parent / path).resolve().is_relative_to(ROOT), f"{path} is outside of the repository"
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
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


def test_troubleshooting_names_metrics_and_error_codes_that_exist():
    text = (DOCS / "troubleshooting.md").read_text()
    for named, page in (
        (re.findall(r"`(legato_(?:gateway|worker|operator)_\w+)`", text), "metrics.md"),
        (re.findall(r"\d{3} `(\w+)`", text), "errors.md"),
    ):
        assert named
        assert set(named) <= set(re.findall(r"^\| `(\w+)` \|", (DOCS / page).read_text(), re.MULTILINE))
