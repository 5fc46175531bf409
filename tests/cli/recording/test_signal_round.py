"""A recorded round comes back as it was, and what cannot be reckoned with does not come back at all."""

import json

import pytest
from budget import times
from hypothesis import HealthCheck, given, settings
from known_signals import arriving, decoder, prefiller, signals
from recordings import recorded_round

from legato_cli.recording import signal_round
from legato_cli.recording.signal_round import BadRound
from legato_operator.autoscaler.signals import Signals

KNOWN = Signals((prefiller(), decoder(sample_age=None, blocks=None), decoder("decode-1")), arriving(600, 2000))


@settings(max_examples=times(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(signals())
def test_a_round_comes_back_as_it_was(known):
    made = recorded_round(0, known)
    assert signal_round.decode(signal_round.encode(made)) == made
    assert b"\n" not in signal_round.encode(made)


def test_what_is_not_known_comes_back_as_not_known():
    made = recorded_round(0, Signals(KNOWN.workers, None), reasons={"prefill": "Arrivals"})
    assert signal_round.decode(signal_round.encode(made)) == made


def _broken(**changes):
    told = json.loads(signal_round.encode(recorded_round(0, KNOWN)))
    for path, value in changes.items():
        *inner, last = path.split("__")
        place = told
        for name in inner:
            place = place[int(name)] if name.isdigit() else place[name]
        place[last] = value
    return json.dumps(told).encode()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b"[" * 100_000, "Expected `object`"),
        (_broken(version=2), "version"),
        (_broken(signals__workers__0__pool="both"), "Invalid enum value 'both'"),
        (_broken(signals__workers__0__age=-1), r"not a valid number: -1 .* at signals.workers\[0\].age"),
        (_broken(signals__traffic__held=10**16), "not a valid number: 1e"),
        (_broken(signals__traffic__seconds=0), "seconds and recent_seconds must be above 0"),
        (_broken(signals__traffic__recent_seconds=0), "seconds and recent_seconds must be above 0"),
        (_broken(desired={}), "the same pools"),
        (_broken(targets={"decode": 1}), "the same pools"),
        (_broken(signals__workers__2__blocks__size=0), "size of blocks must be 1 or more"),
        (
            _broken(signals__workers__0__prefill_cost={"per_token": 1, "chunk_tokens": 0}),
            "chunk_tokens must be 1 or more",
        ),
        (_broken(time=None), "Expected `float`"),
    ],
)
def test_what_is_no_round_is_refused_with_the_reason(line, message):
    with pytest.raises(BadRound, match=message):
        signal_round.decode(line)
