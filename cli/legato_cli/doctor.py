"""`legato doctor`: what this machine offers to Legato, and what is missing."""

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator

PACKAGES = ("legato", "torch", "triton", "ucxx-cu13", "libucx-cu13", "gguf", "tokenizers", "fastapi", "msgspec")
BUILTIN = "builtin:smollm2-135m-instruct"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `legato doctor`."""
    parser = subparsers.add_parser("doctor", help="show what this machine offers and what is missing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every section. Exit code 0: what is missing is told, and is no fault."""
    for title, section in SECTIONS:
        print(title)
        for line in section():
            print(f"  {line}", flush=True)
    return 0


def versions() -> Iterator[str]:
    """Of Python, the kernel and the packages that matter."""
    yield f"{'python':<14} {platform.python_version()}"
    yield f"{'system':<14} {platform.system()} {platform.release()} {platform.machine()}"
    for name in PACKAGES:
        yield f"{name:<14} {_version(name)}"


def devices() -> Iterator[str]:
    """Processor and accelerators."""
    import torch

    from legato_engine import memory, processor

    yield f"{'cpu':<14} {len(os.sched_getaffinity(0))} cores usable; {processor.detect()}"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield f"{'memory':<14} {total >> 20} MiB, {memory.available() >> 20} MiB of it available to a worker"
    if not torch.cuda.is_available():
        yield f"{'gpu':<14} none that torch can use"
    for number in range(torch.cuda.device_count()):
        yield f"{'gpu ' + str(number):<14} {torch.cuda.get_device_name(number)}"


def formats() -> Iterator[str]:
    """What `dtype: Auto` picks here for the built-in model."""
    import torch

    from legato_cli import model
    from legato_engine import processor
    from legato_engine.models.architectures import ARCHITECTURES
    from legato_engine.runner import formats
    from legato_engine.weights.opening import open_weights
    from legato_operator.api.resources import Engine

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        path = model.resolve(BUILTIN, lambda text: None)
    except model.ModelUnavailable as error:
        yield f"{'dtype: Auto':<14} unknown: {error}"
        return
    config = open_weights(path).config
    chosen = formats.choose("auto", processor.detect(), device, config, Engine().block_size)
    yield f"{'dtype: Auto':<14} {chosen} (for {BUILTIN})"
    yield f"{'architectures':<14} {', '.join(ARCHITECTURES)}"


def transports() -> Iterator[str]:
    """What can carry hand-offs, and how fast it is between two processes here."""
    from legato_cli import loopback
    from legato_engine.transfer.link import LinkError
    from legato_engine.transfer.ucx.transports import available_transports

    for name, missing in available_transports().items():
        if missing:
            yield f"{name:<14} not usable: {'; '.join(missing)}"
            continue
        try:
            found = loopback.measure(name)
        except LinkError as error:
            yield f"{name:<14} not usable: {error}"
            continue
        latency, bandwidth = found.latency * 1e6, found.bandwidth / 1e9
        yield f"{name:<14} usable; {latency:.0f} µs a message, {bandwidth:.1f} GB/s between two processes here"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


SECTIONS: tuple[tuple[str, Callable[[], Iterator[str]]], ...] = (
    ("Versions", versions),
    ("Devices", devices),
    ("Formats", formats),
    ("Hand-off", transports),
)
