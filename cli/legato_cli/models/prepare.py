"""`legato prepare`: unpacks or downloads a model and compiles kernels ahead, as in an image's build."""

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from legato_engine.kernels.gpu.chips import CHIPS
from legato_engine.settings import BLOCK_SIZES, DTYPES, KV_DTYPES, QUANTIZATIONS
from legato_protocol.settings import flags

MAX_LENGTH = 256  # tokens; enough to run every kernel once
KV_BYTES = 64 << 20
HELP = "unpack a model and compile the kernels for this processor"
DESCRIPTION = (
    "Unpacks a model into the cache folder and compiles the kernels that it needs on this processor; "
    "with --hugging-face it downloads one, or an adapter, and compiles nothing."
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    flags.option(
        parser,
        "--model",
        kind=flags.text("MODEL"),
        default="builtin:smollm2-135m-instruct",
        help="path, hf:REPO[:FILE]@COMMIT or builtin:NAME",
    )
    flags.repeated(
        parser,
        "--dtype",
        kind=flags.one_of("DTYPE", DTYPES),
        help=f"number format to compile for: {', '.join(DTYPES)}; Auto if not given",
    )
    flags.repeated(
        parser,
        "--kv-cache-dtype",
        kind=flags.one_of("DTYPE", KV_DTYPES),
        help=f"number format of KV to compile for, with each --dtype: {', '.join(KV_DTYPES)}; Auto if not given",
    )
    flags.repeated(
        parser,
        "--quantization",
        kind=flags.one_of("FORMAT", QUANTIZATIONS),
        help=f"format to round a 16-bit model's weights to: {', '.join(QUANTIZATIONS)}; None if not given",
    )
    flags.repeated(
        parser,
        "--chip",
        kind=flags.one_of("CHIP", tuple(CHIPS)),
        help=f"compile the kernels for this kind of GPU instead, which need not be here: {', '.join(CHIPS)}",
    )
    parser.add_argument("--header-only", action="store_true", help="prepare only what a gateway needs: no weights")
    flags.option(
        parser,
        "--hugging-face",
        kind=flags.text("REPO"),
        help="download this repository of the Hugging Face hub, OWNER/NAME; the access token is HF_TOKEN",
    )
    flags.option(parser, "--revision", kind=flags.text("COMMIT"), help="commit of the repository, 40 hex digits")
    flags.option(
        parser,
        "--file",
        kind=flags.text("FILE"),
        help="download only this GGUF file of the repository, of a split one all parts",
    )
    flags.option(
        parser,
        "--adapter",
        kind=flags.text("NAME"),
        help="download the LoRA adapter that the repository holds, and no model; messages about it say this name",
    )
    flags.option(parser, "--into", kind=flags.FOLDER, help="folder for its files, instead of the cache folder")


def run(args: argparse.Namespace) -> int:
    """Exit code 2: the model cannot be used. 1: it is not available now, but may be later."""
    from legato_cli.models import model
    from legato_protocol.process.parent import die_with_parent

    if (args.hugging_face is None) != (args.revision is None):
        return _refuse("--hugging-face and --revision must be given together")
    if (args.into or args.adapter or args.file) and not args.hugging_face:
        return _refuse("--into, --adapter and --file are only allowed with --hugging-face")
    if args.adapter and (args.header_only or args.file):
        return _refuse(f"--adapter and {'--file' if args.file else '--header-only'} cannot be given together")
    try:
        if (parent := flags.parent(os.environ)) and not die_with_parent(parent):
            return 1  # `legato up` has ended
        if args.hugging_face:
            _download(args)
            return 0
        if args.header_only:
            _say(f"wrote {model.prepare_header(args.model, _say)}")
            return 0
        path = model.resolve(args.model, _say)
        formats = args.quantization or ["None"], args.dtype or ["Auto"], args.kv_cache_dtype or ["Auto"]
        return _compile_ahead(path, args.chip, *formats) if args.chip else _compile(path, *formats)
    except flags.SettingsError as error:
        return _refuse(error)
    except model.ModelUnavailable as error:
        _refuse(f"adapter {args.adapter}: {error}" if args.adapter else error)
        return 1 if isinstance(error, model.ModelAway) else 2


def _download(args: argparse.Namespace) -> None:
    """Raises ModelUnavailable."""
    from legato_cli.models import hub_content, hub_model, model

    try:
        snapshot = hub_content.HubSnapshot(args.hugging_face, args.revision)
        if args.file:
            hub_content.check_file(args.file)
    except hub_content.HubRefuses as error:
        raise model.ModelUnavailable(str(error)) from None
    content = hub_content.MODEL_HEADER if args.header_only else hub_content.MODEL
    if args.file or args.adapter:
        content = hub_content.ADAPTER if args.adapter else hub_content.gguf(args.file)
    hub_model.download(snapshot, args.into, _say, content, args.header_only)


def _compile_ahead(
    path: Path, chips: Sequence[str], quantizations: Sequence[str], dtypes: Sequence[str], kv_dtypes: Sequence[str]
) -> int:
    """Compiles into Triton's cache ($TRITON_CACHE_DIR)."""
    from legato_cli.machine import gpus, kernels

    devices = [gpus.elsewhere(chip) for chip in chips]
    for formats in itertools.product(quantizations, dtypes, kv_dtypes):
        _say("compiling kernels for {}, quantization {}, {}, KV {}".format(", ".join(chips), *formats))
        problems = kernels.problems(devices, path, formats, BLOCK_SIZES["cuda"], os.environ)
        if any(problems.values()):
            return _refuse(kernels.describe(path.name, problems))
    return 0


def _compile(path: Path, quantizations: Sequence[str], dtypes: Sequence[str], kv_dtypes: Sequence[str]) -> int:
    from legato_engine.errors import EngineError
    from legato_engine.kernels.cpu import missing
    from legato_engine.runner import cores
    from legato_engine.runner.plan import RunnerOptions
    from legato_engine.runner.runner import Runner
    from legato_engine.weights.opening import open_weights

    try:
        for dtype, kv_dtype, quantization in itertools.product(dtypes, kv_dtypes, quantizations):
            _say(f"compiling kernels for {dtype}, KV {kv_dtype}, quantization {quantization}")
            runner = Runner.load(
                open_weights(path, quantization),
                RunnerOptions(
                    block_size=BLOCK_SIZES["cpu"],
                    kv_cache_bytes=KV_BYTES,
                    dtype=dtype.lower(),
                    kv_dtype=kv_dtype,
                    max_length=MAX_LENGTH,
                ),
            )
            missing.compile_missing(runner.warm_up, lambda: None)
            _say(runner.formats)
        cores.prepare()
    except EngineError as error:
        return _refuse(error)
    return 0


def _refuse(error: Exception | str) -> int:
    print(f"legato prepare: {error}", file=sys.stderr)
    return 2


def _say(text: str) -> None:
    print(f"legato: {text}", flush=True)
