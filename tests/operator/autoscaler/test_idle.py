"""An idle service's decisions are the same until a pool may shrink, and nobody else's are foretold."""

import pytest
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller, prompts, spec

from legato_operator.autoscaler import idle
from legato_operator.autoscaler.signals import OutputLengths, Signals, Traffic
from legato_operator.autoscaler.window import LONGEST_GAP, KeptSize, Window

NOW = 10_000.0
SPEC = spec(scaling={"scaleDownStabilization": "15m", "idleAfter": "10m"})
LONG_AGO = dict.fromkeys(("prefill", "decode"), Window((KeptSize(NOW, 1),), NOW))


def _stable_for(signals=None, windows=None):
    signals = signals or Signals((prefiller(), decoder()), NO_TRAFFIC)
    return idle.stable_for(signals, LONG_AGO | (windows or {}), SPEC, NOW)


@pytest.mark.parametrize(
    ("windows", "seconds"),
    [
        ({}, idle.LONGEST),
        ({"decode": Window((KeptSize(NOW + 10, 3), KeptSize(NOW + 900, 1)), NOW)}, 10.0),
        ({"decode": Window((KeptSize(NOW, 1),), NOW, busy=NOW - 595)}, 5.0),  # the last one for 10
        ({"decode": Window((KeptSize(NOW, 0),), NOW, busy=NOW - 601)}, idle.LONGEST),
    ],
)
def test_decisions_stay_until_a_pool_may_shrink(windows, seconds):
    assert _stable_for(windows=windows) == pytest.approx(seconds)


def test_decisions_continue_their_windows():
    assert idle.LONGEST + 5 < LONGEST_GAP


@pytest.mark.parametrize(
    "signals",
    [
        Signals((prefiller(), decoder()), None),
        Signals((prefiller(), decoder()), arriving(1, 100)),
        Signals((prefiller(), decoder()), Traffic(60.0, (), 10.0, (), waiting=prompts(1, 100))),
        Signals((prefiller(), decoder()), Traffic(60.0, (), 10.0, (), queued=1)),
        Signals((prefiller(), decoder()), Traffic(60.0, (), 10.0, (), output=OutputLengths(10.0, 0.0))),
        Signals((prefiller(queue_tokens=5), decoder()), NO_TRAFFIC),
        Signals((prefiller(queue_tokens=None), decoder()), NO_TRAFFIC),
        Signals((prefiller(), decoder(running=1)), NO_TRAFFIC),
        Signals((prefiller(), decoder(waiting=1)), NO_TRAFFIC),
        Signals((prefiller(), decoder(ready=False)), NO_TRAFFIC),
        Signals((prefiller(), decoder(draining=True)), NO_TRAFFIC),
    ],
)
def test_a_service_with_traffic_or_without_signals_is_not_idle(signals):
    assert _stable_for(signals) == 0.0


def test_a_service_at_zero_is_idle():
    assert _stable_for(Signals((), NO_TRAFFIC)) == idle.LONGEST
