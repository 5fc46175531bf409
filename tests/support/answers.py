"""When two answers to one request are the same."""

from typing import Any

TIE = 2e-3  # logprobs closer than this are one value in float32 sums of another order


def assert_same(found: Any, expected: Any) -> None:
    """The same text; for greedy streams a first difference is allowed where the logits prove a tie."""
    if found.result() == expected.text:
        return
    assert expected.logprobs, f"{found.text!r} is not {expected.text!r}"
    ours, theirs = found.logprobs, expected.logprobs
    first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if _sampled(a) != _sampled(b))
    first_best, second = sorted(theirs[first].values(), reverse=True)[:2]
    assert first_best - second < TIE, f"not a tie at token {first}: {theirs[first]} and {ours[first]}"


def _sampled(top: dict[str, float]) -> str:
    """Greedy takes the best alternative."""
    return max(top, key=lambda token: top[token])
