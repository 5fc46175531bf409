"""What the README tells people to type is what the product prints and has."""

import json
import re
import shlex
from pathlib import Path

import yaml

from legato_cli import greeting, main, up
from legato_operator.api import parsing

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = [block.strip() for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)]


def test_curl_line_is_the_one_that_up_prints():
    service = parsing.parse(up.QUICKSTART.read_text())
    expected = greeting.curl("http://127.0.0.1:8080", service.served_name)
    assert expected in BLOCKS
    assert expected in greeting.text("http://127.0.0.1:8080", service.served_name)


def test_curl_line_is_a_chat_request():
    (line,) = [block for block in BLOCKS if "chat/completions" in block]
    words = shlex.split(line)
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "smollm2"
    assert body["messages"][0]["role"] == "user"


def test_commands_exist():
    for block in BLOCKS:
        program = shlex.split(block)[0]
        assert program == "curl" or (ROOT / program).stat().st_mode & 0o111


def test_subcommands_in_the_table_are_parsed():
    for line in re.findall(r"^\| `legato ([^`]*)`", README, re.MULTILINE):
        assert main.parser().parse_args(line.replace("FILE", "m.yaml").split())


def test_folders_in_the_map_exist():
    table = README[README.index("## The folders") : README.index("## What is not")]
    for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", cell):
            assert (ROOT / name).exists(), name


def test_snippet_is_python():
    compile(greeting.snippet("http://127.0.0.1:8080", "smollm2"), "snippet", "exec")


def test_built_in_example_is_the_one_in_examples():
    shown = (ROOT / "examples" / "quickstart" / "inferenceservice.yaml").read_text()
    assert yaml.safe_load(shown) == yaml.safe_load(up.QUICKSTART.read_text())


def test_every_example_is_accepted():
    for path in sorted(ROOT.glob("examples/**/*.yaml")):
        assert parsing.parse(path.read_text()).kind == "InferenceService"
