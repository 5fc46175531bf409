"""All kernels of a worker are compiled without a GPU, and the one that cannot be is named."""

import re

import checked_kernels
import gpu_kernels
import pytest
import tiny_llama
import uninterpreted


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_llama.write(folder)
    return uninterpreted.call(checked_kernels.told, str(folder))


def test_every_kernel_that_the_docs_tell_of_is_compiled(told):
    _, tables, _ = gpu_kernels.page()
    assert told["names"] == sorted(set(re.findall(r"^\| `(\w+)", tables, re.MULTILINE)))


def test_names_are_noted_no_longer_than_asked(told):
    assert not told["still noted"]


def test_nothing_is_said_where_all_compile(told):
    assert told["well"] == [0, "", ""]


def test_a_kernel_that_does_not_fit_is_named_with_the_reason(told):
    code, kernel, why = told["little"]
    assert (code, kernel) == (1, "attend_items\n")
    assert "out of resource: shared memory" in why
    assert "Hardware limit: 4096" in why


def test_a_model_that_is_not_supported_is_refused_before_any_kernel(told):
    code, kernel, why = told["blocks"]
    assert (code, kernel) == (1, "\n")
    assert why.startswith("a block size of 8 tokens is not supported")


def test_a_kernel_that_triton_refuses_is_named_with_the_reason(told):
    code, kernel, why = told["width"]
    assert (code, kernel) == (1, "_silu_mul\n")
    assert why.splitlines()[-1] == "arange's range must be a power of 2"
