"""Completion in real shells, by the script that `legato completion` prints."""

import contextlib
import shutil
import subprocess

import pytest
import required

from legato_cli import completion, main


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The file with the script of each shell."""
    folder = tmp_path_factory.mktemp("completion")

    def script(shell):
        path = folder / shell
        if not path.exists():
            with path.open("w") as out, contextlib.redirect_stdout(out):
                assert main.main(["completion", shell]) == 0
        return path

    return script


def _completed(script, folder, *words):
    """What bash offers for the last of these words."""
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
def test_bash_completes_commands_flags_values_and_files(scripts, tmp_path, words, offered):
    (tmp_path / "manifest.yaml").touch()
    assert _completed(scripts("bash"), tmp_path, "legato", *words) == offered


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_shell_can_read_its_script_and_finds_every_command(scripts, shell):
    script = scripts(shell)
    for command in ("up", "api-key", "simulate", "completion"):
        assert command in script.read_text()
    if shutil.which(shell) is None:
        required.missing(f"no {shell} on the PATH")
    assert subprocess.run([shell, "-n", str(script)], check=False, timeout=60).returncode == 0


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["completion", "csh"])
    assert ended.value.code == 2
    assert "bash, zsh, fish" in capsys.readouterr().err
