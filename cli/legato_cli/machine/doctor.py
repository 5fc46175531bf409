"""`legato doctor`: shows the capabilities of this machine, and missing requirements."""

import argparse
import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from legato_protocol.settings import flags

if TYPE_CHECKING:
    from legato_engine.backends.cuda.device import Device
    from legato_operator.api.resources import Spec
    from legato_operator.api.spec.model import HubFile, HuggingFace

PACKAGES = ("legato", "torch", "triton", "ucxx-cu13", "libucx-cu13", "gguf", "tokenizers", "fastapi", "msgspec")
Section = Callable[[], Iterator[str]]
FAILED = 1
BUILTIN = "builtin:smollm2-135m-instruct"
HELP = "show what this machine offers, what it lacks, and what fits"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "model", nargs="?", type=flags.text("MODEL"), metavar="MODEL", help="whether it fits, as `legato up MODEL`"
    )
    about = "also check if the workers of this manifest fit, and what its deployment lacks"
    which.add_argument("-f", "--file", type=flags.FILE, metavar="FILE", help=about)


def run(args: argparse.Namespace) -> int:
    """Prints every section. Exit code 1: the model does not fit, or nothing can be computed or handed over here."""
    asked = args.model is not None or args.file is not None
    sections: list[tuple[str, Section]] = [*SECTIONS]
    with tempfile.TemporaryDirectory(prefix="legato-doctor-") as folder:
        if asked:
            sections = [(title, partial(formats, None) if each is formats else each) for title, each in sections]
            subject = Subject(args.model, args.file, Path(folder))
            sections.append(("Memory", partial(fitting, subject)))
            sections.append(("Sampling", partial(sampling_defaults, subject)))
        if args.file is not None:
            sections.append(("Deployment", partial(deployment, args.file)))
        results = [_print(title, section) for title, section in sections]
    return 0 if all(results) else FAILED


def _print(title: str, section: Section) -> bool:
    """Prints a section. Returns False if something is wrong."""
    print(title)
    try:
        for line in section():
            print(f"  {line}", flush=True)
    except (SomethingWrong, NotJudged) as error:
        print(f"  {error}", flush=True)
        return isinstance(error, NotJudged)
    return True


@dataclass(frozen=True)
class Subject:
    """A model's name or a manifest's file; files of its repository on the hub are written to `scratch`."""

    name: str | None
    file: Path | None
    scratch: Path


class SomethingWrong(Exception):
    """This machine or the model cannot be used. The text is the last line of its section."""


class NotJudged(Exception):
    """This machine cannot read the manifest's model now. The text is the section's last line."""


def fitting(subject: Subject) -> Iterator[str]:
    """Checks memory and kernels for a model or a manifest. Raises SomethingWrong."""
    import torch

    from legato_cli.machine import fit
    from legato_engine.errors import NoDevice
    from legato_engine.runner import backends
    from legato_operator.api import roles

    spec, path = _asked(subject)
    try:
        device_memory = None
        if torch.cuda.is_available():
            device = backends.gpu("cuda")
            assert device is not None
            device_memory = fit.Gpus(device, torch.cuda.mem_get_info()[0], torch.cuda.device_count())
        yield from fit.lines(spec, path, device_memory, _draft(spec, subject))
        yield f"{'degrees':<14} {fit.degrees(spec, path, device_memory)}"
        yield f"{'formats':<14} {fit.formats_of(spec, path, device_memory)}"
        yield from fit.sharing(spec, len(os.sched_getaffinity(0)), device_memory is not None)
    except (fit.DoesNotFit, NoDevice) as error:
        raise SomethingWrong(str(error)) from None
    if device_memory is not None and any(roles.gpus(spec, role) for role in roles.with_pool(spec)):
        yield _compiled(spec, path)


def _compiled(spec: "Spec", path: Path) -> str:
    """Compiles this model's kernels. Raises SomethingWrong if one fails and workers would stop because of it."""
    from legato_cli.machine import gpus, kernels
    from legato_engine.settings import BLOCK_SIZES

    engine = spec.engine
    size = BLOCK_SIZES["cuda"] if engine.block_size == "Auto" else engine.block_size
    formats = engine.quantization, engine.dtype, engine.kv_cache_dtype
    problems = kernels.problems(gpus.devices(), path, formats, size, os.environ)
    line = kernels.describe(path.name, problems)
    if any(problems.values()) and engine.on_kernel_failure != "Torch":
        raise SomethingWrong(line)
    return line


def sampling_defaults(subject: Subject) -> Iterator[str]:
    """Yields the default sampling parameters of a model or a manifest. Raises SomethingWrong."""
    from legato_gateway import generation_config

    spec, path = _asked(subject)
    try:
        if path.is_dir():
            generation_config.declared_ends(path)
        if spec.model.generation_config == "None":
            yield f"{'defaults':<14} neutral: model.generationConfig is None"
        else:
            yield f"{'defaults':<14} {generation_config.load(path)}"
    except generation_config.BadGenerationConfig as error:
        raise SomethingWrong(str(error)) from None


def deployment(file: Path) -> Iterator[str]:
    """Yields the items of the deployment checklist. Raises SomethingWrong if the manifest cannot be read."""
    from legato_cli.checklist import items
    from legato_operator.errors import ManifestError

    try:
        yield from items.lines(_spec(file))
    except ManifestError as error:
        raise SomethingWrong(f"{file}: {error}") from None


def _spec(file: Path) -> "Spec":
    """Reads a manifest, which may be for any cluster. Raises ManifestError."""
    from legato_cli.manifests import manifest_file
    from legato_operator.api import parsing

    return parsing.parse(manifest_file.read_text(file)).spec


def _asked(subject: Subject) -> "tuple[Spec, Path]":
    from legato_cli.local import model_manifest, serving
    from legato_cli.models import model
    from legato_operator.api import parsing
    from legato_operator.errors import ManifestError
    from legato_operator.manifests.common import model_argument
    from legato_operator.planning import checks

    name, file = subject.name, subject.file
    try:
        spec = _spec(file) if file is not None else None
        if spec is not None and (repository := spec.model.source.hugging_face) is not None:
            if problems := checks.unavailable(spec, in_containers=True):
                raise ManifestError(problems)
            return spec, _outline(repository, subject.scratch, _say)
        made = model_manifest.of(name, _say, outlines=subject.scratch) if name is not None else None
        service = serving.read_manifest(file).service if file is not None else parsing.read_mapping(made)
        return service.spec, model.resolve(model_argument(service), _say)
    except ManifestError as error:
        if file is not None and _for_kubernetes(file):
            raise NotJudged(f"not judged on this machine: {'; '.join(str(error).splitlines())}") from None
        raise SomethingWrong(f"{file or name}: {error}") from None
    except model.ModelUnavailable as error:
        if file is not None and isinstance(error, model.ModelAway):
            raise NotJudged(f"not judged: {error}") from None
        raise SomethingWrong(str(error)) from None


def _say(text: str) -> None:
    print(f"legato: {text}", file=sys.stderr, flush=True)


def _draft(spec: "Spec", subject: Subject) -> Path | None:
    """Returns the path of the manifest's draft model, or of its outline. Raises NotJudged, SomethingWrong."""
    from legato_cli.models import model
    from legato_operator.manifests import common

    source = None if spec.engine.speculation is None else spec.engine.speculation.model
    if source is None:
        return None
    if source.pvc or source.image:
        raise NotJudged("not judged: engine.speculation.model is on a cluster")
    try:
        if source.hugging_face is None:
            return model.resolve(common.draft_argument(source), _say)
        folder = subject.scratch / "draft"
        folder.mkdir(exist_ok=True)
        return _outline(source.hugging_face, folder, _say)
    except model.ModelAway as error:
        raise NotJudged(f"not judged: engine.speculation.model: {error}") from None
    except model.ModelUnavailable as error:
        raise SomethingWrong(f"engine.speculation.model: {error}") from None


def _outline(repository: "HuggingFace | HubFile", scratch: Path, progress: Callable[[str], None]) -> Path:
    """Raises ModelUnavailable."""
    from legato_cli.models import hub_content, hub_model

    snapshot = hub_content.HubSnapshot(repository.repo, repository.revision)
    content = hub_content.gguf(repository.file) if repository.file else hub_content.MODEL
    return hub_model.outline_of(snapshot, content, scratch, progress)


def _for_kubernetes(file: Path) -> bool:
    """True if Kubernetes can run the manifest, but `legato up` does not support one of its fields."""
    from legato_operator.errors import ManifestError
    from legato_operator.planning import checks

    try:
        spec = _spec(file)
    except ManifestError:
        return False
    return bool(checks.unavailable(spec)) and not checks.unavailable(spec, in_containers=True)


def versions() -> Iterator[str]:
    """Yields the versions of Python, the kernel and the relevant packages."""
    yield f"{'python':<14} {platform.python_version()}"
    yield f"{'system':<14} {platform.system()} {platform.release()} {platform.machine()}"
    for name in PACKAGES:
        yield f"{name:<14} {_version(name)}"


def devices() -> Iterator[str]:
    """Yields the processor and the memory."""
    from legato_engine import memory, processor

    yield f"{'cpu':<14} {len(os.sched_getaffinity(0))} cores usable; {processor.detect()}"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield f"{'memory':<14} {total >> 20} MiB, {memory.available() >> 20} MiB of it available to a worker"


def gpus() -> Iterator[str]:
    """Yields the accelerators, and the requirements of kernels and hand-offs."""
    from legato_cli.machine import gpus, kernels
    from legato_cli.models import model
    from legato_engine.settings import BLOCK_SIZES

    facts = gpus.find(os.environ)
    yield from gpus.lines(facts)
    if facts.gpus and facts.triton and not facts.cannot_compile:
        try:
            path = model.resolve(BUILTIN, lambda text: None)
        except model.ModelUnavailable as error:
            yield f"{'kernels':<14} unknown: {error}"
            return
        problems = kernels.problems(facts.gpus, path, ("None", "Auto", "Auto"), BLOCK_SIZES["cuda"], os.environ)
        yield kernels.describe(BUILTIN, problems)


def formats(model: str | None = BUILTIN) -> Iterator[str]:
    """Yields the choice of `dtype: Auto` for a model, faster formats of other processors, and architectures."""
    import torch

    from legato_engine import processor
    from legato_engine.errors import NoDevice
    from legato_engine.kernels import paths
    from legato_engine.models.architectures import ARCHITECTURES
    from legato_engine.runner import backends

    try:
        gpu = backends.gpu("cuda") if torch.cuda.is_available() else None
    except NoDevice as error:
        raise SomethingWrong(f"{'dtype: Auto':<14} unknown: {error}") from None
    if model is not None:
        yield _automatic(model, gpu)
    if gpu is None and (faster := paths.faster(processor.detect())):
        yield f"{'faster with':<14} {', '.join(faster)}"
    yield f"{'architectures':<14} {', '.join(ARCHITECTURES)}"


def _automatic(name: str, gpu: "Device | None") -> str:
    """Raises SomethingWrong."""
    from legato_cli.models import model
    from legato_engine import processor, settings
    from legato_engine.runner import formats
    from legato_engine.weights.opening import open_weights

    try:
        config = open_weights(model.resolve(name, lambda text: None)).config
    except model.ModelUnavailable as error:
        raise SomethingWrong(f"{'dtype: Auto':<14} unknown: {error}") from None
    chosen = formats.choose("auto", processor.detect(), gpu, config, settings.BLOCK_SIZES["cuda" if gpu else "cpu"])
    return f"{'dtype: Auto':<14} {chosen} (for {name})"


def transports() -> Iterator[str]:
    """Yields the transports with their speed between two local processes, and the choice of `transport: Auto`."""
    import torch

    from legato_cli.machine import loopback, node_memory
    from legato_cli.machine.handoffs import Handoffs
    from legato_engine.transfer.selftest import process
    from legato_engine.transfer.ucx.transports import available_transports

    handoffs = Handoffs(
        available_transports(),
        loopback.measure,
        lambda name: process.check(name, loopback.HOST),
        on_device=torch.cuda.is_available(),
    )
    yield from handoffs.lines()
    yield node_memory.line()
    if not handoffs.usable:
        raise SomethingWrong("no transport can be used: KV cannot be handed over here")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


SECTIONS: tuple[tuple[str, Section], ...] = (
    ("Versions", versions),
    ("Devices", devices),
    ("GPUs", gpus),
    ("Formats", formats),
    ("Hand-off", transports),
)
