"""HorizontalPodAutoscaler, against sizes computed by hand from Kubernetes' description."""

import pytest

from legato_cli.simulation.rivals.hpa import HorizontalPodAutoscaler, HpaBehavior, HpaPolicy


def scaler(**behavior) -> HorizontalPodAutoscaler:
    return HorizontalPodAutoscaler(HpaBehavior(**behavior))


@pytest.mark.parametrize(
    ("metric", "size"),
    [(50, 5), (54, 5), (46, 5), (56, 6), (75, 8), (1, 5)],
)
def test_size_is_metric_by_target_beyond_the_tolerance(metric, size):
    """5 workers for 10 each: 46 to 54 are within 10 %. Down waits for the stabilization window."""
    assert scaler().size(0, 5, metric, 10) == size


def test_down_only_to_the_highest_recommendation_of_300_s():
    hpa = scaler()
    assert hpa.size(0, 5, 80, 10) == 8
    assert [hpa.size(now, 8, 30, 10) for now in (15, 150, 300)] == [8, 8, 8]
    assert hpa.size(315, 8, 30, 10) == 3


def test_down_stops_at_what_was_recommended_within_the_window():
    hpa = scaler()
    hpa.size(0, 8, 60, 10)
    hpa.size(200, 8, 60, 10)
    assert hpa.size(301, 8, 10, 10) == 6


def test_up_by_four_or_double_within_15_s():
    assert scaler().size(0, 2, 1000, 10) == 6
    assert scaler().size(0, 10, 1000, 10) == 20


def test_period_counts_what_it_has_added_already():
    """With 1 worker in 180 s, the second one waits."""
    hpa = scaler(up=(HpaPolicy(180, workers=1),))
    assert hpa.size(0, 2, 1000, 10) == 3
    assert hpa.size(15, 3, 1000, 10) == 3
    assert hpa.size(180, 3, 1000, 10) == 3
    assert hpa.size(195, 3, 1000, 10) == 4


def test_period_counts_what_it_has_removed_already():
    hpa = scaler(down=(HpaPolicy(300, workers=1),), down_window=0.0)
    assert hpa.size(0, 5, 0, 10) == 5  # the first recommendation is the present size
    assert hpa.size(15, 5, 0, 10) == 4
    assert hpa.size(30, 4, 0, 10) == 4
    assert hpa.size(330, 4, 0, 10) == 3


def test_between_syncs_the_wish_stays():
    hpa = scaler()
    assert hpa.size(0, 5, 80, 10) == 8
    assert hpa.size(2, 8, 200, 10) == 8
    assert hpa.size(15, 8, 200, 10) == 10  # the double of the 5 which were there when the period began
