"""Triton's own source is compiled as at the first launch; what is missing is reported, and nothing stays behind."""

import os
import subprocess
import sys

import required

needs_compiler = required.program("gcc", "clang")


def _run(folder, **environ):
    """In a process of its own, as in the image's build; caches and temporary files belong into `folder`."""
    folder.mkdir()
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)} | environ
    return subprocess.run(
        [sys.executable, "-m", "legato_engine.kernels.gpu.launcher"], capture_output=True, text=True, env=variables
    )


@needs_compiler
def test_what_launches_kernels_is_compiled_without_a_gpu_and_leaves_nothing(tmp_path):
    done = _run(tmp_path / "folder")
    assert (done.returncode, done.stderr) == (0, "")
    assert [*(tmp_path / "folder").iterdir()] == []


def test_a_missing_compiler_and_what_it_refuses_are_reported(tmp_path):
    done = _run(tmp_path / "without", PATH="/nonexistent")
    assert (done.returncode, "Failed to find C compiler" in done.stderr) == (1, True)
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho Python.h: No such file or directory >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = _run(tmp_path / "with", CC=str(compiler))
    assert done.returncode == 1
    assert "Python.h: No such file or directory" in done.stderr
    assert "Triton cannot compile what launches kernels" in done.stderr
