"""`legato prepare` compiles for the formats that it is given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from legato_cli import model
from legato_cli.main import main

MODEL = "builtin:smollm2-135m-instruct"


def test_a_format_of_kv_that_does_not_go_with_the_others_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(model.resolve(MODEL, lambda _text: None))
    arguments = ["--dtype", "Float16", "--kv-cache-dtype", "BFloat16"]
    assert main(["prepare", "--model", path, *arguments]) == 2
    out, err = capsys.readouterr()
    assert "compiling kernels for Float16, KV BFloat16" in out
    assert err.startswith("legato prepare: KV cannot be BFloat16 with float16")


REPOSITORY = ("--hugging-face", "owner/name", "--revision", "0" * 40)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (REPOSITORY[:2], "--hugging-face and --revision must be given together"),
        (("--into", "folder"), "--into and --adapter are only allowed with --hugging-face"),
        (("--adapter", "sql"), "--into and --adapter are only allowed with --hugging-face"),
        ((*REPOSITORY, "--adapter", "sql", "--header-only"), "--adapter and --header-only cannot be given together"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", *arguments]) == 2
    assert capsys.readouterr().err == f"legato prepare: {said}\n"


def test_what_binds_threads_to_cores_is_compiled_too(tmp_path: Path) -> None:
    path = str(model.resolve(MODEL, lambda _text: None))
    program = [sys.executable, "-m", "legato_cli.main", "prepare", "--model", path, "--dtype", "BFloat16"]
    subprocess.run(program, check=True, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, timeout=120)
    assert list(tmp_path.glob("**/thread_ids.thread_ids-*.nbc"))
