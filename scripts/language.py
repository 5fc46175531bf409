"""Check the project's English: docstring openers, retired words, class names, dates in docs, and long constructors.

Usage: scripts/language.py [PACKAGE…]. Prints one line for each fault and exits with 1 if there is one. CONTRIBUTING.md
has the words to use instead.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "benchmarks",
    "cli",
    "engine",
    "gateway",
    "grammar",
    "operator",
    "protocol",
    "scripts",
    "simulator",
    "telemetry",
    "e2e",
    "tests",
)
TESTS = ("e2e", "tests")
SCRIPTS = ("benchmarks", "scripts")  # stand alone, so that their classes need no unique names
OPENERS = re.compile(r"(What|Who|Whom|Which|Whose|Of|How|Those|Where|That|Whether)\b")
OPENERS_ALLOWED = 0.05
ARGUMENTS_ALLOWED = 6  # of a constructor, besides `self`

# Each retired word and what replaces it. Names are split into words first, so `_told_at` counts as "told".
RETIRED = {
    r"told|tells?|telling": "reported, logged, sent, exposed, raised, notified",
    r"wish(ed|es)?": "desired",
    r"no number": "NaN, not a number",
    r"no more": "no longer, at most",
    r"no longer than": "at most",
    r"so (long|many|much)": "this duration, count or amount",
    r"spelled": "formatted, written as",
    r"for want of": "because of missing",
    r"there is none": "missing",
    r"of ours": "our",
    r"beside": "alongside, concurrently with, in addition to",
    r"at once": "immediately, or in one batch",
    r"those of|that of|what (is|was|are|were)": "the noun itself",
    r"misfits?|rivals?|desks?": "mismatch, baseline, …",
    r"begun": "a verb, or a noun for a property",
}
RETIRED_PATTERNS = [(re.compile(rf"(?<![\w-])({words})(?![\w-])"), use) for words, use in RETIRED.items()]
RETIRED_NAMES = {"found": "the noun: row, match, worker", "told": "reported", "wished": "desired"}
TURN = re.compile(r"(?<![\w-])[Tt]urns?(?![\w-])")
TURN_PATHS = re.compile(r"^(gateway|tests|e2e|cli/legato_cli/(chat|bench)|grammar|benchmarks)\b")
DATE = re.compile(r"(?<![`=\w])20\d\d-\d\d-\d\d\b")
LINK_TARGET = re.compile(r"(?<=\])\([^)\s]*\)")  # of Markdown


def words_of(name: str) -> str:
    """Returns a name's words in lower case, separated by spaces."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").strip().lower()


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields each docstring of a module with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each name, comment and string."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], words_of(token.string)
        elif token.type in (tokenize.COMMENT, tokenize.STRING) or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def word_faults(path: str, source: str) -> Iterator[str]:
    """Yields a line for each retired word of a Python file."""
    seen = set()
    for line, text in texts(source):
        for pattern, use in RETIRED_PATTERNS:
            for match in pattern.finditer(text.lower()):
                if (line, match[0]) not in seen:
                    seen.add((line, match[0]))
                    yield f"{path}:{line}: {match[0]!r} is a retired word: {use}"
        if TURN.search(text) and not TURN_PATHS.match(path) and (line, "turn") not in seen:
            seen.add((line, "turn"))
            yield f"{path}:{line}: 'turn' is a chat turn only: iteration, frame, tag, slot, wave"


def name_faults(path: str, tree: ast.Module) -> Iterator[str]:
    """Yields a line for each variable that has a retired name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in RETIRED_NAMES:
            yield f"{path}:{node.lineno}: a variable named {node.id!r}: {RETIRED_NAMES[node.id]}"


def constructor_faults(path: str, tree: ast.Module) -> Iterator[str]:
    """Yields a line for each constructor with too many arguments. Data classes are values, so they may have more."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            given = node.args
            count = len(given.posonlyargs + given.args + given.kwonlyargs) - 1
            if count > ARGUMENTS_ALLOWED:
                yield f"{path}:{node.lineno}: {count} arguments; at most {ARGUMENTS_ALLOWED}: pass some as one value"


def package_faults(package: str, classes: dict[str, list[str]]) -> Iterator[str]:
    """Yields the faults of one package, and adds its public classes to `classes`."""
    total, opened = 0, []
    for file in sorted((ROOT / package).rglob("*.py")):
        if file == Path(__file__).resolve():
            continue
        path, source = str(file.relative_to(ROOT)), file.read_text()
        tree = ast.parse(source)
        for line, text in docstrings(tree):
            total += 1
            if match := OPENERS.match(text):
                opened.append(f"{path}:{line}: the docstring opens with {match[0]!r}")
        if package not in TESTS:
            yield from word_faults(path, source)
            yield from name_faults(path, tree)
            yield from constructor_faults(path, tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and package not in SCRIPTS:
                    classes[node.name].append(f"{path}:{node.lineno}")
    if len(opened) > OPENERS_ALLOWED * total:
        yield from opened
        yield f"{package}: {len(opened)} of {total} docstrings open so; at most {OPENERS_ALLOWED:.0%} may"


def doc_faults() -> Iterator[str]:
    """Yields a line for each retired word of all pages but histories, and for each date in the docs and the README."""
    undated = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    packages = (file for package in PACKAGES if package not in TESTS for file in (ROOT / package).rglob("*.md"))
    dated = [ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *(ROOT / "designs").glob("*.md"), *packages]
    for file in [*undated, *sorted(file for file in dated if "history" not in file.parts)]:
        path = file.relative_to(ROOT)
        for line, text in enumerate(LINK_TARGET.sub("", file.read_text()).splitlines(), 1):
            if file in undated and DATE.search(text):
                yield f"{path}:{line}: a date: figures and their dates belong in benchmarks/"
            for pattern, use in RETIRED_PATTERNS:
                for match in pattern.finditer(text.lower()):
                    yield f"{path}:{line}: {match[0]!r} is a retired word: {use}"


def main(packages: list[str]) -> int:
    """Prints the faults of these packages, or of everything."""
    classes: dict[str, list[str]] = defaultdict(list)
    faults = [fault for package in packages or PACKAGES for fault in package_faults(package, classes)]
    faults += [
        f"{places[0]}: class {name} also in {', '.join(places[1:])}"
        for name, places in classes.items()
        if len(places) > 1
    ]
    if not packages:
        faults += doc_faults()
    for fault in faults:
        print(fault)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
