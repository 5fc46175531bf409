"""The profiles of a plan: one for each degree of parallelism, all of the manifest's model."""

import re
from collections.abc import Iterator, Sequence

from legato_cli.errors import CannotRun
from legato_engine.runner import profile
from legato_engine.runner.profile import Profile
from legato_operator.api.resources import InferenceService


def read(service: InferenceService, names: Sequence[str]) -> tuple[Profile, ...]:
    """Returns the profiles in order of degree. Raises CannotRun and UnusableProfile."""
    engine = service.spec.engine
    given = names or ([engine.profile] if engine.runner == "Paced" and engine.profile else [])
    if not given:
        raise CannotRun("--profile is required: measure one with `legato bench --profile`, or name a shipped one")
    made: dict[int, tuple[str, Profile]] = {}
    for name in given:
        read = profile.find(name)
        if read.tensor in made:
            raise CannotRun(
                f"{made[read.tensor][0]} and {name} are both of workers with tensor {read.tensor}: a plan compares "
                "shapes of one hardware, so plan each by itself"
            )
        if engine.runner != "Paced":  # whose tokens are random, with any model's tokenizer
            _check_model(service, name, read)
        made[read.tensor] = name, read
    return tuple(made[degree][1] for degree in sorted(made))


def _check_model(service: InferenceService, name: str, read: Profile) -> None:
    """Raises CannotRun for a profile of another model. A name may have a prefix or suffix, as `-Instruct`."""
    names = list(_model_names(service))
    own = _plain(read.model)
    if own and not any(own in each or each in own for each in map(_plain, names) if each):
        raise CannotRun(
            f"profile {name} is of {read.model}, and the manifest's model is {names[0]}: its times say nothing about "
            "it; measure one with `legato bench --profile`, or set the profile's `model` if this is the same model"
        )


def _model_names(service: InferenceService) -> Iterator[str]:
    source = service.spec.model.source
    if source.hugging_face is not None:
        yield source.hugging_face.repo.rpartition("/")[2]
    for text in (source.builtin, source.path, source.pvc and source.pvc.path, source.image):
        if text:
            yield str(text).rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    yield service.served_name


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())
