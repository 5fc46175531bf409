"""The docs show the lifecycles, the compute paths and the architectures as the code has them."""

from pathlib import Path

import pytest

from legato_engine.diagrams import DIAGRAMS, TABLES_OF_DOCS, rewrite

ROOT = Path(__file__).parents[2]
HANDOFF, DOCS = ROOT / "engine" / "legato_engine" / "transfer" / "README.md", ROOT / "docs"


@pytest.mark.parametrize("heading", DIAGRAMS)
def test_the_docs_show_the_table(heading):
    _, _, section = HANDOFF.read_text().partition(f"## {heading}\n")
    shown = section.partition("\n## ")[0]
    assert DIAGRAMS[heading] in shown, "run: python -m legato_engine.diagrams engine/legato_engine/transfer/README.md"


def test_the_diagrams_of_a_page_are_made_again_and_nothing_else_of_it():
    page = HANDOFF.read_text()
    assert rewrite(page.replace("stateDiagram-v2\n", "an old diagram\n")) == page


@pytest.mark.parametrize(
    ("heading", "name", "row"),
    [("Formats", "engine-cpu.md", "| `codes` |"), ("Architectures", "models.md", "| `LlamaForCausalLM` |")],
)
def test_the_docs_show_every_compute_path_and_architecture(heading, name, row):
    page = (DOCS / name).read_text()
    assert TABLES_OF_DOCS[heading] in page, f"run: python -m legato_engine.diagrams docs/{name}"
    assert rewrite(page.replace(row, "| an old one |")) == page
