"""Sampling defaults of a model: `generation_config.json` of a Hugging Face folder, or metadata of a GGUF file.

The keys are those that vLLM reads (`ModelConfig.get_diff_sampling_param`), and in a GGUF file those that llama.cpp's
converter writes for them. Keys for other methods of sampling (`do_sample`, beams, mirostat) are ignored.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from legato_protocol.model_files import gguf_header
from legato_protocol.sampling.limits import MAX_MODEL_STOP_TOKENS, RANGES, Interval

FILE: Final = "generation_config.json"
_WHOLE = ("top_k", "max_tokens")
_TOP_K = RANGES["top_k"]._replace(least=-1)  # -1 is off too, as in requests
_KEYS: Final = MappingProxyType(  # keys of the file, by field of `GenerationDefaults`
    {
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "max_tokens": "max_new_tokens",
    }
)
_METADATA: Final = MappingProxyType(
    {
        "temperature": "general.sampling.temp",
        "top_p": "general.sampling.top_p",
        "top_k": "general.sampling.top_k",
        "min_p": "general.sampling.min_p",
        "repetition_penalty": "general.sampling.penalty_repeat",
    }
)


class BadGenerationConfig(ValueError):
    """A default is invalid. The text names the file and the key."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Defaults for fields that a request does not set; None: the neutral value. `max_tokens` applies only to chats."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def given(self) -> dict[str, float]:
        """Returns the values that are set, by the names of requests' fields."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.given().items()) or "none"


NEUTRAL: Final = GenerationDefaults()


def load(path: Path) -> GenerationDefaults:
    """Loads the defaults of the model at that path, a folder or a GGUF file. Raises BadGenerationConfig."""
    if path.is_dir():
        return _defaults(_read(path / FILE), _KEYS, path / FILE)
    try:
        metadata = gguf_header.load(path).metadata
    except (OSError, ValueError) as error:
        raise BadGenerationConfig(f"{path}: {error}") from None
    return _defaults({key: _shortest(value) for key, value in metadata.items()}, _METADATA, path)


def declared_ends(folder: Path) -> tuple[int, ...]:
    """Returns the tokens that end a sequence: `eos_token_id` of `generation_config.json`, or else of `config.json`.

    Raises BadGenerationConfig for ids outside the vocabulary: workers would refuse each request with them.
    """
    config = _read(folder / "config.json")
    size = config.get("vocab_size")
    vocabulary = size if isinstance(size, int) else None
    ids = _ids(_read(folder / FILE).get("eos_token_id"), vocabulary, f"{folder / FILE}: eos_token_id")
    return ids or _ids(config.get("eos_token_id"), vocabulary, f"{folder / 'config.json'}: eos_token_id")


def _read(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Returns an empty one if there is no such file."""
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadGenerationConfig(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadGenerationConfig(f"{path}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise BadGenerationConfig(f"{path}: not a JSON object")
    return config


def _ids(given: Any, vocabulary: int | None, at: str) -> tuple[int, ...]:
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if len(ids) > MAX_MODEL_STOP_TOKENS:
        raise BadGenerationConfig(f"{at}: {len(ids)} tokens (at most {MAX_MODEL_STOP_TOKENS})")
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int) or id < 0 or (vocabulary is not None and id >= vocabulary):
            allowed = f"0 to {vocabulary - 1}" if vocabulary is not None else "0 or more"
            raise BadGenerationConfig(f"{at}: not a valid token id: {_excerpt(id)} ({allowed})")
    return tuple(ids)


def _defaults(given: Mapping[str, Any], keys: Mapping[str, str], file: Path) -> GenerationDefaults:
    values = {}
    for field, key in keys.items():
        if (value := given.get(key)) is not None:
            limits = _TOP_K if field == "top_k" else RANGES[field]
            values[field] = _checked(value, limits, field in _WHOLE, f"{file}: {key}")
    return GenerationDefaults(**values)


def _checked(value: Any, limits: Interval, whole: bool, at: str) -> Any:
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not limits.allows(value):
        kind = "a whole number" if whole else "a number"
        raise BadGenerationConfig(f"{at}: not a valid value: {_excerpt(value)} ({kind} from {limits})")
    return value


def _excerpt(value: Any) -> str:
    return repr(value)[:40]


def _shortest(value: Any) -> Any:
    """Rounds a float32 of a GGUF file to 7 digits, as it was written: 0.95 instead of 0.949999988079071."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
