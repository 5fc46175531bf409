"""Steps of .github/workflows/release.yml, which has the versions in one place less than the files do.

check TAG   fails unless the tag, pyproject.toml, the chart and the Dockerfile name one version; prints that version
notes TAG   prints the section of CHANGELOG.md for the version; fails if it is missing
"""

import re
import sys
from pathlib import Path

VERSIONS = {  # file: what stands before each place that names the version
    "pyproject.toml": r'^version = "',
    "charts/legato/Chart.yaml": r"^(?:version|appVersion): ",
    "Dockerfile": r"^ARG VERSION=",
}


def check(root: Path, tag: str) -> str:
    """Returns the version of the tag. Raises SystemExit if a file names another version, or none."""
    version = tag.removeprefix("v")
    for name in VERSIONS:
        for other in versions(root, name) or ["no version"]:
            if tag != f"v{other}":
                raise SystemExit(f"{name}: {other}, but the tag is {tag}")
    notes(root, tag)
    return version


def versions(root: Path, name: str) -> list[str]:
    """Returns each version that the file names as Legato's."""
    return re.findall(VERSIONS[name] + r"([^\s\"]+)", (root / name).read_text(), re.MULTILINE)


def notes(root: Path, tag: str) -> str:
    """Returns the changelog's section for the version, without its heading. Raises SystemExit if it is missing."""
    version = tag.removeprefix("v")
    heading = rf"^## \[?{re.escape(version)}\]?(?: [^\n]*)?\n"
    section = re.search(rf"{heading}(.*?)(?=^## |\Z)", (root / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL)
    if section is None or not section[1].strip():
        raise SystemExit(f"CHANGELOG.md: no section '## {version}'")
    return section[1].strip()


if __name__ == "__main__":
    print({"check": check, "notes": notes}[sys.argv[1]](Path.cwd(), sys.argv[2]))
