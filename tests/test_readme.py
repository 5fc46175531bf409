"""Commands and outputs of the README are those of the product."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from legato_cli import main
from legato_cli.local import greeting, up
from legato_operator.api import parsing

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]
README = PAGES[0].read_text()
PARSER = main.parser()
PROCESSES = {"gateway", "operator", "worker"}  # a user never starts these
PROGRAMS = {"curl", "docker", "for", "helm", "kind", "kubectl"}  # on the reader's machine, not in the repository


def _commands(page: Path) -> list[list[str]]:
    """The command lines of a page's shell fences, as words."""
    fences = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    return [shlex.split(line, comments=True) for fence in fences for line in fence.splitlines() if line]


COMMANDS = [(page.name, words) for page in PAGES for words in _commands(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_curl_line_is_the_one_that_up_prints(page):
    service = parsing.parse(up.QUICKSTART.read_text())
    expected = greeting.curl("http://127.0.0.1:8080", service.served_name)
    assert shlex.split(expected) in _commands(page)
    assert expected in greeting.text("http://127.0.0.1:8080", service.served_name, "http://127.0.0.1:1/ui")


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda value: " ".join(value)[:40])
def test_command_and_the_files_it_names_exist(page, words):
    program = words[0]
    if program == ".venv/bin/legato":
        assert PARSER.parse_args(words[1:])
    elif program not in PROGRAMS:
        assert (ROOT / program).stat().st_mode & 0o111
    for word in words[1:]:
        if word.startswith(("examples/", "charts/")):
            assert (ROOT / word).exists()


def test_images_that_are_built_are_those_of_the_dockerfile_and_the_chart():
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    chart = yaml.safe_load((ROOT / "charts" / "legato" / "Chart.yaml").read_text())
    images = yaml.safe_load((ROOT / "charts" / "legato" / "values.yaml").read_text())["images"]
    built = [words for _, words in COMMANDS if words[:2] == ["docker", "build"]]
    assert built
    for words in built:
        target = words[words.index("--target") + 1]
        assert target in stages
        assert words[words.index("-t") + 1] == f"{images[target]['repository']}:{chart['appVersion']}"


def test_the_user_of_every_image_is_a_number():
    """Pods name no user: by this one, kubelets see that `runAsNonRoot` holds."""
    users = re.findall(r"^USER (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert users
    assert all(re.fullmatch("[1-9][0-9]*:[1-9][0-9]*", user) for user in users)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs" / "kubernetes.md"], ids=lambda page: page.name)
def test_version_of_kubernetes_that_is_asked_for_is_the_charts(page):
    chart = yaml.safe_load((ROOT / "charts" / "legato" / "Chart.yaml").read_text())
    (version,) = re.findall(r"^>=(\d+\.\d+)\.0-0$", chart["kubeVersion"])
    assert re.findall(r"Kubernetes (\d+\.\d+) or newer, Helm", page.read_text()) == [version]


def test_commands_in_the_table_are_all_and_are_parsed():
    section = (ROOT / "docs" / "settings.md").read_text().split("## Commands\n")[1].split("\n## ")[0]
    lines = [line.split() for line in re.findall(r"^\| `legato ([^`]*)`", section, re.MULTILINE)]
    for line in lines:
        assert PARSER.parse_args(line)
    assert {line[0] for line in lines} == set(PARSER._subparsers._group_actions[0].choices) - PROCESSES


def test_built_in_example_is_the_one_in_examples_without_its_resources():
    """Workers on one machine share all of its cores; on a cluster, others want some, too."""
    shown = yaml.safe_load((ROOT / "examples" / "quickstart" / "inferenceservice.yaml").read_text())
    for part in ("prefill", "decode", "gateway"):
        given = shown["spec"].pop(part)
        assert given.keys() == {"resources"}
        assert given["resources"].keys() == {"requests", "limits"}
    assert shown == yaml.safe_load(up.QUICKSTART.read_text())


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/**/*.yaml")), ids=lambda path: path.parent.name)
def test_every_example_is_accepted(path):
    assert parsing.parse(path.read_text()).kind == "InferenceService"


def _manifests(page: Path) -> list[str]:
    fences = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    return [fence for fence in fences if "kind: InferenceService" in fence]


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_every_manifest_of_the_docs_is_accepted(page):
    for manifest in _manifests(page):
        assert parsing.parse(manifest)
