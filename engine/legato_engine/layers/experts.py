"""The parameters of a mixture of experts that differ between models. No tensors, no torch."""

from dataclasses import dataclass

from legato_engine.kernels.routing import ExpertRouting, Gating


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of weights, without `.weight` and `.bias`; `{}` in an expert's stands for its number, from 0 on.

    A checkpoint has one matrix for each expert and projection, whatever its files have."""

    router: str  # [count, hidden]
    gate: str  # [inner, hidden]
    up: str  # [inner, hidden]
    down: str  # [hidden, inner]
    correction: str | None = None  # full name of [count]; added to scores for the choice, not for the weights


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An expert that computes all tokens, and is added to the sum of the chosen ones."""

    gate: str
    up: str
    down: str
    inner: int
    weight: str | None = None  # linear layer with one output, whose sigmoid multiplies the expert's result; None: 1


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """A mixture of experts: `[tokens, hidden] → [tokens, hidden]`."""

    hidden: int
    inner: int  # of each expert
    routing: ExpertRouting
    names: ExpertNames
    gating: Gating = Gating.SILU
    router_bias: bool = False  # of logits
    biases: bool = False  # of the projections of experts
    shared: SharedExpert | None = None

    def gate_up(self, expert: int) -> tuple[str, str]:
        """Names of the projections of an expert's input, gate first."""
        return self.names.gate.format(expert), self.names.up.format(expert)

    def down(self, expert: int) -> str:
        return self.names.down.format(expert)
