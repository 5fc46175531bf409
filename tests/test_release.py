"""A release is refused unless all files name its version, and its notes are the changelog's section."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / "scripts" / "release.py"))
CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n## 1.2.0 - 2026-12-01\n\n### Added\n\n- A.\n\n## 1.1.0 - 2026-11-01\n\n- B.\n"
)
CHART = "charts/legato/Chart.yaml"
FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.0"\n',
    CHART: "apiVersion: v2\nversion: 1.2.0\nappVersion: 1.2.0\n",
    "Dockerfile": "ARG VERSION=1.2.0\n",
    "CHANGELOG.md": CHANGELOG,
}


def _tree(root: Path, **changed: str) -> Path:
    for name, text in {**FILES, **changed}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_release_has_the_tags_version_everywhere(tmp_path):
    assert RELEASE["check"](_tree(tmp_path), "v1.2.0") == "1.2.0"


@pytest.mark.parametrize(
    ("tag", "changed", "message"),
    [
        ("v1.1.0", {}, "pyproject.toml: 1.2.0, but the tag is v1.1.0"),
        ("1.2.0", {}, "pyproject.toml: 1.2.0, but the tag is 1.2.0"),
        ("v1.2.0", {CHART: "version: 1.2.0\nappVersion: 1.1.0\n"}, f"{CHART}: 1.1.0, but the tag is v1.2.0"),
        ("v1.2.0", {"Dockerfile": "FROM base\n"}, "Dockerfile: no version, but the tag is v1.2.0"),
        ("v1.2.0", {"CHANGELOG.md": "## Unreleased\n\n- A.\n"}, "CHANGELOG.md: no section '## 1.2.0'"),
        ("v1.2.0", {"CHANGELOG.md": "## 1.2.0\n\n## 1.1.0\n\n- B.\n"}, "CHANGELOG.md: no section '## 1.2.0'"),
    ],
)
def test_another_version_anywhere_refuses_the_release(tmp_path, tag, changed, message):
    with pytest.raises(SystemExit) as refused:
        RELEASE["check"](_tree(tmp_path, **changed), tag)
    assert str(refused.value) == message


def test_the_notes_are_the_versions_section_of_the_changelog(tmp_path):
    root = _tree(tmp_path)
    assert RELEASE["notes"](root, "v1.2.0") == "### Added\n\n- A."
    assert RELEASE["notes"](root, "v1.1.0") == "- B."


@pytest.mark.parametrize("name", RELEASE["VERSIONS"])
def test_the_version_of_this_clone_is_found_in_each_file(name):
    """A file whose form changes would refuse every release."""
    (version,) = RELEASE["versions"](ROOT, "pyproject.toml")
    assert set(RELEASE["versions"](ROOT, name)) == {version}
