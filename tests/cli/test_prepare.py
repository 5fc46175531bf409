"""`legato prepare` compiles for the formats that it is given."""

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
