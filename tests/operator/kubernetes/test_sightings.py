"""Changes that no watch tells of are found, and those that it tells of late are no alarm."""

from legato_operator.kubernetes.sightings import Sightings


def _pod(uid, version):
    return {"kind": "Pod", "metadata": {"uid": uid, "resourceVersion": str(version)}}


def _names(items):
    return [item["metadata"]["uid"] for item in items]


def test_change_that_was_told_of_is_not_missed():
    sightings = Sightings()
    sightings.saw(_pod("a", 1), gone=False)
    assert not sightings.missed([_pod("a", 2)])  # on its way
    sightings.saw(_pod("a", 2), gone=False)
    assert not sightings.missed([_pod("a", 2)])


def test_change_that_was_not_told_of_until_the_next_look_is_missed():
    sightings = Sightings()
    sightings.saw(_pod("a", 1), gone=False)
    sightings.missed([_pod("a", 2), _pod("b", 3)])
    assert _names(sightings.missed([_pod("a", 5), _pod("b", 3)]).changed) == ["a", "b"]


def test_newer_change_than_the_listed_one_will_do():
    sightings = Sightings()
    sightings.missed([_pod("a", 2)])
    sightings.saw(_pod("a", 7), gone=False)
    assert not sightings.missed([_pod("a", 9)])


def test_object_that_ended_since_is_not_missed():
    sightings = Sightings()
    sightings.missed([_pod("a", 2)])
    assert not sightings.missed([])


def test_watches_that_begin_anew_have_the_time_of_a_look():
    sightings = Sightings()
    sightings.saw(_pod("a", 1), gone=False)
    sightings.forget()
    assert not sightings.missed([_pod("a", 1)])
    assert _names(sightings.missed([_pod("a", 1)]).changed) == ["a"]


def test_ends_that_no_watch_told_of_are_missed_once_and_forgotten():
    """Otherwise every object that ends between two watches would be remembered for ever."""
    sightings = Sightings()
    for number in range(100):
        sightings.saw(_pod(f"p{number}", 1), gone=False)
    assert not sightings.missed([])  # on their way
    assert sightings.missed([]).ended == 100
    assert not sightings.missed([])
    assert not sightings._versions


def test_end_that_was_told_of_late_is_not_missed():
    sightings = Sightings()
    sightings.saw(_pod("a", 1), gone=False)
    sightings.missed([])
    sightings.saw(_pod("a", 2), gone=True)
    assert not sightings.missed([])
