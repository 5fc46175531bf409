"""Completion in real shells, by the script that `legato completion` prints."""

import shutil
import subprocess

import pytest
import required

from legato_cli import completion


@pytest.fixture
def script(legato, tmp_path_factory):
    """Writes the script of a shell into a file."""

    def write(shell):
        path = tmp_path_factory.mktemp("completion") / shell
        path.write_text(legato("completion", shell).out)
        return path

    return write


def _completed(script, folder, *words):
    program = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; '
        'function=$(complete -p legato | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
        '$function legato "${@: -1}" "${@: -2:1}"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "--noprofile", "-c", program, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=folder)
    assert done.stderr == ""
    return {line.strip() for line in done.stdout.splitlines()}


@required.program("bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sta"], {"state", "status"}),
        (["rotate-t"], {"rotate-token"}),
        (["status", "--out"], {"--output"}),
        (["status", "--output", ""], {"text", "json"}),
        (["scale", ""], {"prefill", "decode"}),
        (["completion", "z"], {"zsh"}),
        (["up", "-f", "man"], {"manifest.yaml"}),
        (["validate", "man"], {"manifest.yaml"}),
        (["explain", "sca"], {"scaling"}),
        (["nonsense"], {""}),
    ],
)
def test_bash_completes_commands_flags_values_and_files(script, tmp_path, words, offered):
    (tmp_path / "manifest.yaml").touch()
    assert _completed(script("bash"), tmp_path, "legato", *words) == offered


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_can_read_its_script_and_finds_every_command(script, shell):
    path = script(shell)
    text = path.read_text()
    assert [command for command in ("up", "api-key", "simulate", "completion") if command not in text] == []
    if shutil.which(shell) is None:
        required.missing(f"no {shell} on the PATH")
    assert subprocess.run([shell, "-n", str(path)], check=False, timeout=60).returncode == 0
