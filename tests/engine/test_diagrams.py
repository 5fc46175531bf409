"""The docs show the lifecycles as the code has them."""

from pathlib import Path

import pytest

from legato_engine.diagrams import DIAGRAMS, rewrite

DOCS = Path(__file__).parents[2] / "docs" / "handoff.md"


@pytest.mark.parametrize("heading", DIAGRAMS)
def test_the_docs_show_the_table(heading):
    _, _, section = DOCS.read_text().partition(f"## {heading}\n")
    shown = section.partition("\n## ")[0]
    assert DIAGRAMS[heading] in shown, "run: python -m legato_engine.diagrams docs/handoff.md"


def test_the_diagrams_of_a_page_are_made_again_and_nothing_else_of_it():
    page = DOCS.read_text()
    assert rewrite(page.replace("stateDiagram-v2\n", "an old diagram\n")) == page
