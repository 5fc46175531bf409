"""Rules of the model's source, its adapters, and the engine."""

import re

from legato_operator.api.resources import Engine, InferenceService
from legato_operator.api.rules.rule import Rule, exactly_one, no_traversal, no_traversal_in_entries
from legato_operator.api.spec.model import Model

_NAMED = "[^/.]|[.]{3}"  # a path with a name in it, and not only with `.` and `..`
_PLACES = ("huggingFace", "pvc", "path", "image")  # of the files of models and adapters


def _adapters_have_own_names(model: Model) -> bool:
    names = [adapter.name for adapter in model.adapters]
    return len(set(names)) == len(names) and model.served_name not in names


def _service_is_no_adapter(service: InferenceService) -> bool:
    model = service.spec.model
    return model.served_name is not None or service.metadata.name not in {adapter.name for adapter in model.adapters}


def _chunk_holds_a_block(engine: Engine) -> bool:
    return engine.block_size == "Auto" or engine.chunk_tokens == "Auto" or engine.chunk_tokens >= engine.block_size


def _hang_is_detectable(engine: Engine) -> bool:
    """True within 3 s (workers report every half second) and 1 h (a step's limit must be a valid duration)."""
    return 3 <= engine.hang_timeout <= 3600


def _has_format_of_kv(engine: Engine) -> bool:
    """True if the kernels can read this KV format: kernels of another dtype than the KV's compute in float32."""
    asked = engine.kv_cache_dtype
    return engine.runner != "Model" or asked in ("Auto", "FP8", engine.dtype) or engine.dtype in ("Auto", "Float32")


RULES = (
    exactly_one("spec.model.source", "", "builtin", *_PLACES),
    no_traversal("spec.model.source", "path"),
    no_traversal("spec.model.source.pvc", "path"),
    no_traversal("spec.model.source.huggingFace", "nodeCache"),
    exactly_one("spec.model", "adapters", *_PLACES, entries="source", of=" for each adapter's source"),
    no_traversal_in_entries("spec.model", "adapters", "source.path", "source.pvc.path"),
    Rule(
        at="spec.model",
        field="adapters",
        message="names must differ from one another and from servedName",
        holds=_adapters_have_own_names,
        cel="!has(self.adapters) || self.adapters.all(a, self.adapters.exists_one(b, b.name == a.name) && "
        "(!has(self.servedName) || a.name != self.servedName))",
    ),
    Rule(
        at="",
        field="spec.model.adapters",
        message="names must differ from metadata.name, which is the model's name without servedName",
        holds=_service_is_no_adapter,
        cel="!has(self.spec.model.adapters) || has(self.spec.model.servedName) || "
        "!self.spec.model.adapters.exists(a, a.name == self.metadata.name)",
    ),
    Rule(
        at="spec.model",
        field="adapters",
        message="maxRank must be at most maxAdapterRank",
        holds=lambda model: all((adapter.max_rank or 1) <= model.max_adapter_rank for adapter in model.adapters),
        cel="!has(self.adapters) || self.adapters.all(a, "
        "!has(a.maxRank) || a.maxRank <= (has(self.maxAdapterRank) ? self.maxAdapterRank : 64))",
    ),
    exactly_one("spec.model", "adapterVolumes", "claim", "path", entries="", of=" for each"),
    no_traversal_in_entries("spec.model", "adapterVolumes", "path"),
    Rule(
        at="spec.engine",
        field="hangTimeout",
        message="must be from 3s to 1h",
        holds=_hang_is_detectable,
        cel="duration(self.hangTimeout) >= duration('3s') && duration(self.hangTimeout) <= duration('1h')",
    ),
    Rule(
        at="spec.engine",
        field="kvCacheDtype",
        message="must be Auto, FP8 or the same as dtype, unless that is Auto or Float32",
        holds=_has_format_of_kv,
        cel="self.runner != 'Model' || self.kvCacheDtype in ['Auto', 'FP8', self.dtype] || "
        "self.dtype in ['Auto', 'Float32']",
    ),
    exactly_one("spec.engine.speculation", "model", "builtin", *_PLACES),
    no_traversal("spec.engine.speculation.model", "path"),
    no_traversal("spec.engine.speculation.model.pvc", "path"),
    Rule(
        at="spec.engine.speculation",
        field="model",
        message="required with method Draft, and only allowed with it",
        holds=lambda speculation: (speculation.method == "Draft") == (speculation.model is not None),
        cel="(self.method == 'Draft') == has(self.model)",
    ),
    Rule(
        at="spec.engine",
        field="speculation.method",
        message="Draft needs runner Model",
        holds=lambda engine: (
            engine.runner == "Model" or engine.speculation is None or engine.speculation.method != "Draft"
        ),
        cel="self.runner == 'Model' || !has(self.speculation) || self.speculation.method != 'Draft'",
    ),
    Rule(
        at="spec.engine",
        field="chunkTokens",
        message="must be at least blockSize",
        holds=_chunk_holds_a_block,
        cel="type(self.blockSize) == string || type(self.chunkTokens) == string || self.chunkTokens >= self.blockSize",
    ),
    Rule(
        at="spec.engine",
        field="hostKVMemory",
        message="required with diskKV",
        holds=lambda engine: engine.disk_kv is None or engine.host_kv_memory is not None,
        cel="!has(self.diskKV) || has(self.hostKVMemory)",
    ),
    no_traversal("spec.engine.diskKV", "path"),
    Rule(
        at="spec.engine.diskKV",
        field="path",
        message="must be a folder below /",
        holds=lambda disk: re.search(_NAMED, disk.path) is not None,
        cel=f"self.path.matches('{_NAMED}')",
        arithmetic=lambda disk: f"it is {disk.path}",
    ),
    Rule(
        at="spec.engine",
        field="profile",
        message="required with runner Paced",
        holds=lambda engine: engine.runner != "Paced" or engine.profile is not None,
        cel="self.runner != 'Paced' || has(self.profile)",
    ),
    Rule(
        at="spec.engine",
        field="profile",
        message="only allowed with runner Paced",
        holds=lambda engine: engine.runner == "Paced" or engine.profile is None,
        cel="self.runner == 'Paced' || !has(self.profile)",
    ),
)
