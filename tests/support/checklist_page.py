"""Writes the page with the deployment checklist."""

from pathlib import Path

from legato_cli.checklist import items

PAGE = Path(__file__).parents[2] / "docs" / "checklist.md"

if __name__ == "__main__":
    PAGE.write_text(items.page())
