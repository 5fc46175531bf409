"""`legato prepare` compiles for the formats that it is given."""

from types import SimpleNamespace

import pytest

from legato_cli.machine import kernels
from legato_cli.models import model
from legato_engine.runner import cores, runner

MODEL = "builtin:smollm2-135m-instruct"


def test_a_format_of_kv_that_does_not_go_with_the_others_is_refused(legato):
    path = model.resolve(MODEL, lambda _text: None)
    code, out, err = legato("prepare", "--model", path, "--dtype", "Float16", "--kv-cache-dtype", "BFloat16")
    assert code == 2
    assert "compiling kernels for Float16, KV BFloat16, quantization None" in out
    assert err.startswith("legato prepare: KV cannot be BFloat16 with float16")


def test_each_pair_of_formats_is_warmed_up_and_what_binds_threads_to_cores_is_compiled_too(legato, monkeypatch):
    warm = []

    def load(checkpoint, options):
        formats = options.dtype, options.kv_dtype
        return SimpleNamespace(warm_up=lambda: warm.append(formats), formats="the formats")

    monkeypatch.setattr(runner.Runner, "load", load)
    monkeypatch.setattr(cores, "prepare", lambda: warm.append("cores"))
    kv = ("--kv-cache-dtype", "Auto", "--kv-cache-dtype", "Float32")
    code, out, err = legato("prepare", "--model", model.resolve(MODEL, print), "--dtype", "BFloat16", *kv)
    assert (code, err, out.count("the formats")) == (0, "", 2)
    assert warm == [("bfloat16", "Auto"), ("bfloat16", "Float32"), "cores"]


REPOSITORY = "--hugging-face owner/name --revision " + "0" * 40


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--hugging-face owner/name", "--hugging-face and --revision must be given together"),
        *(
            (flag, "--into, --adapter and --file are only allowed with --hugging-face")
            for flag in ("--into folder", "--adapter sql", "--file m.gguf")
        ),
        (f"{REPOSITORY} --adapter sql --file m.gguf", "--adapter and --file cannot be given together"),
        (f"{REPOSITORY} --adapter sql --header-only", "--adapter and --header-only cannot be given together"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags, said, legato):
    assert legato("prepare", *flags.split()) == (2, "", f"legato prepare: {said}\n")


def test_kernels_are_compiled_for_gpus_that_are_not_here_for_each_format(legato, monkeypatch, tmp_path):
    asked = []

    def problems(gpus, path, formats, block_size, _environ):
        asked.append(([gpu.chip for gpu in gpus], gpus[0].shared >> 10, formats, block_size))
        return {"sm_89": "", "sm_100": "attend: it spills"} if "FP8" in formats else {"sm_89": "", "sm_100": ""}

    monkeypatch.setattr(kernels, "problems", problems)
    command = ("prepare", "--model", tmp_path, "--chip", "sm_89", "--chip", "sm_100")
    assert legato(*command).code == 0
    code, _, err = legato(*command, "--kv-cache-dtype", "Auto", "--kv-cache-dtype", "FP8")
    assert (code, err.endswith("compile for sm_100: attend: it spills\n")) == (2, True)
    formats = [("None", "Auto", "Auto")] * 2 + [("None", "Auto", "FP8")]
    assert asked == [(["sm_89", "sm_100"], 99, each, 64) for each in formats]
    assert "not a valid chip: sm_75" in legato("prepare", "--chip", "sm_75").err
