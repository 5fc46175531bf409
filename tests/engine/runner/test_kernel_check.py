"""All kernels of a worker are compiled without a GPU, and the one that cannot be is named."""

import re

import checked_kernels
import gpu_kernels
import pytest
import tiny_llama
import uninterpreted


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_llama.write(folder)
    return uninterpreted.call(checked_kernels.run_checks, str(folder))


def test_every_kernel_in_the_docs_is_compiled(checks):
    """But the sum over ranks, which most workers do not need."""
    _, tables, _ = gpu_kernels.page()
    assert checks["names"] == sorted(set(re.findall(r"^\| `(\w+)", tables, re.MULTILINE)) - {"_add_ranks"})


@pytest.mark.parametrize(
    ("check", "code", "kernel", "reason"),
    [
        ("well", 0, "", "^$"),
        ("outline", 0, "", "^$"),
        ("little", 1, "attend_items\n", "out of resource: shared memory.*Hardware limit: 4096"),
        ("blocks", 1, "\n", "^a block size of 8 tokens is not supported"),
        ("width", 1, "_silu_mul\n", "arange's range must be a power of 2$"),
    ],
)
def test_the_kernel_that_does_not_compile_is_named_with_the_reason(checks, check, code, kernel, reason):
    """None where all do, or where the model is not supported: that is said before any kernel."""
    assert checks[check][:2] == [code, kernel]
    assert re.search(reason, checks[check][2].rstrip("\n"), re.DOTALL)
