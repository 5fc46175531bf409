"""Nobody reads what was before his own write, nothing is believed twice, and what has ended stays ended."""

import copy
import random

import pytest

from legato_operator.cluster import ObjectList
from legato_operator.kubernetes.known_objects import KnownObjects

KEY = ("default", "a")
SERVICE = "serving.legato.dev/service"


def _item(version, name="a", uid="1", service="demo", **metadata):
    labels = {SERVICE: service} if service else {}
    found = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": found | metadata}


def _version(known, key=KEY):
    found = known.get(key)
    return None if found is None else int(found["metadata"]["resourceVersion"])


def _wrote(known, item):
    with known.writing(KEY) as write:
        known.wrote(item, write)


def test_own_write_is_known_at_once_and_no_older_word_is_believed():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    _wrote(known, _item(5))
    known.told(_item(3), gone=False)
    assert _version(known) == 5
    known.told(_item(6), gone=False)
    assert _version(known) == 6


def test_answer_to_a_write_that_comes_after_later_changes_takes_none_back():
    known = KnownObjects()
    with known.writing(KEY) as write:
        known.told(_item(5), gone=False)
        known.told(_item(7), gone=False)
        known.wrote(_item(5), write)
    assert _version(known) == 7


def test_object_that_ended_before_the_answer_to_its_creation_stays_ended():
    known = KnownObjects()
    with known.writing(KEY) as write:
        known.told(_item(5), gone=False)
        known.told(_item(7), gone=True)
        known.wrote(_item(5), write)
    assert known.get(KEY) is None


def test_another_object_of_that_name_is_known_though_the_one_before_ended_meanwhile():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    with known.writing(KEY) as write:
        known.told(_item(4), gone=True)
        known.wrote(_item(5, uid="2"), write)
    assert _version(known) == 5


def test_what_was_deleted_here_is_gone_at_once_whatever_is_still_told_of_it():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    known.deleted(KEY, "1")
    known.told(_item(3), gone=False)
    assert known.get(KEY) is None
    known.told(_item(4), gone=True)
    known.told(_item(5, uid="2"), gone=False)
    assert _version(known) == 5
    assert not known._ends


def test_end_of_an_object_does_not_end_the_next_of_its_name():
    known = KnownObjects()
    _wrote(known, _item(9, uid="2"))
    known.told(_item(8), gone=True)
    known.deleted(KEY, "1")
    assert _version(known) == 9


def _names(items):
    return [item["metadata"]["name"] for item in items]


def _of_demo(known):
    return _names(known.of_service("default", "demo"))


def test_a_list_ends_what_it_lacks_but_not_what_was_written_since():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    known.told(_item(2, "b", "2"), gone=False)
    known.told(_item(3, "c", "3"), gone=False)
    _wrote(known, _item(20, "d", "4"))
    assert not known.audited(ObjectList((_item(2, "b", "2"), _item(3, "c", "3")), 10))
    assert _of_demo(known) == ["b", "c", "d"]


def test_what_a_list_shows_is_not_known_of_before_a_watch_tells():
    """It may be metadata alone."""
    known = KnownObjects()
    known.audited(ObjectList((_item(1),), 10))
    assert known.get(KEY) is None


def test_a_list_made_before_a_deletion_does_not_bring_it_back():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    known.deleted(KEY, "1")
    known.audited(ObjectList((_item(1),), 10))
    assert known.get(KEY) is None
    known.told(_item(2), gone=False)  # a late word of it
    assert known.get(KEY) is None


def test_object_that_a_list_ended_stays_ended_whatever_is_told_of_it_late():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    known.audited(ObjectList((), 10))
    known.told(_item(3), gone=False)
    assert known.get(KEY) is None
    known.told(_item(4), gone=True)
    assert not known.audited(ObjectList((), 20))
    assert not known._ends


def test_answer_to_a_creation_that_a_list_shows_to_have_ended_is_not_believed():
    known = KnownObjects()
    with known.writing(KEY) as write:
        known.audited(ObjectList((), 10))
        known.wrote(_item(5), write)
    assert known.get(KEY) is None


def test_change_that_was_told_of_is_not_missed():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    assert not known.audited(ObjectList((_item(2),), 2))  # on its way
    known.told(_item(2), gone=False)
    assert not known.audited(ObjectList((_item(2),), 2))


def test_change_that_was_not_told_of_until_the_next_list_is_missed():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    known.audited(ObjectList((_item(2), _item(3, "b", "2")), 3))
    missed = known.audited(ObjectList((_item(5), _item(3, "b", "2")), 5))
    assert _names(missed.changed) == ["a", "b"]


def test_own_write_that_watches_do_not_tell_of_is_missed_too():
    known = KnownObjects()
    _wrote(known, _item(2))
    assert not known.audited(ObjectList((_item(2),), 2))
    assert len(known.audited(ObjectList((_item(2),), 3))) == 1


def test_watches_that_begin_anew_have_the_time_of_a_list():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    known.forget()
    assert not known.audited(ObjectList((_item(1),), 2))
    assert len(known.audited(ObjectList((_item(1),), 3))) == 1


def test_watches_that_stay_deaf_are_found_so_again():
    known = KnownObjects()
    for _ in range(3):
        missed = known.audited(ObjectList((_item(1),), 2))
        known.forget()
    assert len(missed) == 1


def test_newer_change_than_the_listed_one_will_do():
    known = KnownObjects()
    known.audited(ObjectList((_item(2),), 2))
    known.told(_item(7), gone=False)
    assert not known.audited(ObjectList((_item(9),), 9))


def test_ends_that_no_watch_told_of_are_missed_once_and_forgotten():
    """Otherwise every object that ends between two watches would be known for ever."""
    known = KnownObjects()
    for number in range(100):
        known.told(_item(1, f"p{number}", f"u{number}"), gone=False)
    known.deleted(("default", "p0"), "u0")
    assert not known.audited(ObjectList((), 2))  # on their way
    assert known.audited(ObjectList((), 3)).ended == 100
    assert not known.audited(ObjectList((), 4))
    assert not known._ends
    assert not known._objects


def test_end_of_what_watches_never_told_of_is_not_missed():
    """It may have come and gone before they began."""
    known = KnownObjects()
    _wrote(known, _item(2))
    known.deleted(KEY, "1")
    known.audited(ObjectList((), 3))
    assert not known.audited(ObjectList((), 4))
    assert not known._ends


def test_end_of_what_was_written_here_after_a_watch_told_of_it_is_missed():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    _wrote(known, _item(5))
    known.audited(ObjectList((), 6))
    assert known.audited(ObjectList((), 7)).ended == 1


def test_end_that_was_told_of_late_is_not_missed():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    known.audited(ObjectList((), 2))
    known.told(_item(2), gone=True)
    assert not known.audited(ObjectList((), 3))


def test_cluster_that_was_set_back_is_known_anew():
    known = KnownObjects()
    known.told(_item(50), gone=False)
    assert not known.audited(ObjectList((_item(50),), 60))
    assert known.audited(ObjectList((_item(20),), 30))
    known.told(_item(20), gone=False)
    assert _version(known) == 20


def test_object_belongs_to_the_service_of_its_label():
    known = KnownObjects()
    known.told(_item(1), gone=False)
    known.told(_item(2, service="other"), gone=False)
    assert not known.of_service("default", "demo")
    assert len(known.of_service("default", "other")) == 1
    known.told(_item(3, service=""), gone=False)
    assert not known.of_service("default", "other")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_order_of_words_and_answers_the_end_is_what_there_is(seed):
    """A cluster of three names; a watch that lags, lists now and then, and writers whose answers come late."""
    chance, version = random.Random(seed), 0
    there, late, answers, known = {}, [], [], KnownObjects()

    def write(name):
        nonlocal version
        version += 1
        before = there.get(name)
        if before is not None and chance.random() < 0.4:
            del there[name]
            late.append((_item(version, name, before["metadata"]["uid"]), True))
            return
        uid = before["metadata"]["uid"] if before else f"{name}{version}"
        there[name] = _item(version, name, uid)
        late.append((_item(version, name, uid), False))
        if chance.random() < 0.5:  # by us: its answer is under way
            manager = known.writing(("default", name))
            answers.append((manager, manager.__enter__(), _item(version, name, uid)))

    def answer():
        manager, flight, item = answers.pop(chance.randrange(len(answers)))
        known.wrote(item, flight)
        manager.__exit__(None, None, None)

    def tell():
        known.told(*late.pop(0))

    for _ in range(300):
        step = chance.random()
        if step < 0.4:
            write(chance.choice("abc"))
        elif step < 0.55 and answers:
            answer()
        elif step < 0.6:
            known.audited(ObjectList(tuple(map(copy.deepcopy, there.values())), version))
        elif late:
            tell()
        known.check_integrity()
    while late:
        tell()
    while answers:
        answer()
    found = {
        item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in known.of_service("default", "demo")
    }
    assert found == {name: item["metadata"]["resourceVersion"] for name, item in there.items()}
