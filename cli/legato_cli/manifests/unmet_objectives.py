"""Finds objectives of a manifest that even an idle worker with a given profile misses."""

from collections.abc import Mapping, Sequence

from legato_engine.runner import profile
from legato_engine.runner.profile import Profile
from legato_operator.api import roles
from legato_operator.api.resources import Spec
from legato_operator.autoscaler import objectives
from legato_operator.autoscaler.signals import DecodeCost, PrefillCost, PromptLengths
from legato_simulator.engine.chunks import chunk_tokens


def by_profile(spec: Spec, worker: Profile, prompts: Sequence[PromptLengths] = ()) -> Mapping[str, str]:
    """Returns, by objective, the reason why such workers never meet it for `prompts`."""
    chunk, prefills = chunk_tokens(spec), roles.PREFILL if spec.disaggregated else roles.DECODE
    step, decoding = (worker.of_degree(roles.ranks(spec, role)).step for role in (prefills, roles.DECODE))
    prefill = PrefillCost(step.per_token + step.per_step / chunk, step.per_pair, step.per_step, chunk)
    decode = DecodeCost(decoding.per_step, decoding.per_row, decoding.per_context)
    reasons = {
        objectives.TTFT: objectives.unmet_ttft(spec.slo.ttft, prefill, prompts),
        objectives.TPOT: objectives.unmet_tpot(spec.slo.tpot, decode),
    }
    return {objective: text for objective, text in reasons.items() if text}


def of_paced(spec: Spec) -> list[tuple[str, str]]:
    """Returns path and message of each unmet objective if workers are paced by a shipped profile.

    Only the workers can read a profile at another path.
    """
    name = spec.engine.profile if spec.engine.runner == "Paced" else None
    if name not in profile.shipped():
        return []
    return [(f"spec.{objective}", text) for objective, text in by_profile(spec, profile.find(name)).items()]
