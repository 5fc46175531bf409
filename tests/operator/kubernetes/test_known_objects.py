"""Nobody reads what was before his own write, nothing is believed twice, and what has ended stays ended."""

import copy
import random

import pytest

from legato_operator.cluster import ObjectList
from legato_operator.kubernetes.cache.known_objects import KnownObjects

KEY = ("default", "a")
SERVICE = "serving.legato.dev/service"


def _item(version, name="a", uid="1", service="demo", **metadata):
    labels = {SERVICE: service} if service else {}
    found = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": found | metadata}


def _version(known, key=KEY):
    found = known.get(key)
    return None if found is None else int(found["metadata"]["resourceVersion"])


# What happens to the objects that are known: each step is a function of them.


def told(version, *, gone=False, **item):
    return lambda known: known.report(_item(version, **item), gone=gone)


def wrote(version, *meanwhile, **item):
    """A write of one's own, and what happens before its answer comes."""

    def step(known):
        with known.writing(KEY) as write:
            _do(known, meanwhile)
            known.wrote(_item(version, **item), write)

    return step


def deleted(uid="1"):
    return lambda known: known.deleted(KEY, uid)


def listed(at, *versions):
    """A list of that version, in which the object is, or is not; gives what watches missed."""
    return lambda known: known.audit(ObjectList(tuple(_item(version) for version in versions), at))


def forgotten(known):
    known.forget()


def _do(known, steps):
    outcome = None
    for step in steps:
        outcome = step(known)
        known.check_integrity()
    return outcome


KNOWN = {
    "own write is known at once": ([told(1), wrote(5)], 5),
    "no older word than one's own write is believed": ([told(1), wrote(5), told(3)], 5),
    "a newer word than one's own write is believed": ([told(1), wrote(5), told(3), told(6)], 6),
    "a late answer takes no later change back": ([wrote(5, told(5), told(7))], 7),
    "what ended before the answer to its creation stays ended": ([wrote(5, told(5), told(7, gone=True))], None),
    "another object of that name is known": ([told(1), wrote(5, told(4, gone=True), uid="2")], 5),
    "what was deleted here is gone at once": ([told(1), deleted(), told(3)], None),
    "after a deletion the next object of that name is known": (
        [told(1), deleted(), told(3), told(4, gone=True), told(5, uid="2")],
        5,
    ),
    "the end of an object does not end the next of its name": ([wrote(9, uid="2"), told(8, gone=True), deleted()], 9),
    "what a list shows is not known before a watch tells: it may be metadata": ([listed(10, 1)], None),
    "a list made before a deletion does not bring it back": ([told(1), deleted(), listed(10, 1)], None),
    "nor does a late word after such a list": ([told(1), deleted(), listed(10, 1), told(2)], None),
    "what a list ended stays ended whatever is told late": ([told(1), listed(10), told(3)], None),
    "a creation that a list shows to have ended is not believed": ([wrote(5, listed(10))], None),
    "a cluster that was set back is known anew": ([told(50), listed(60, 50), listed(30, 20), told(20)], 20),
}


@pytest.mark.parametrize(("steps", "version"), KNOWN.values(), ids=KNOWN)
def test_what_is_known_of_an_object(steps, version):
    known = KnownObjects()
    _do(known, steps)
    assert _version(known) == version


MISSED = {
    # Changed objects, and ended ones, that watches should have told of by the last list.
    "a change that is on its way": ([told(1), listed(2, 2)], (0, 0)),
    "a change that was told of": ([told(1), listed(2, 2), told(2), listed(2, 2)], (0, 0)),
    "a change that was not told of until the next list": ([told(1), listed(3, 2), listed(5, 5)], (1, 0)),
    "a newer change than the listed one": ([listed(2, 2), told(7), listed(9, 9)], (0, 0)),
    "an own write until the next list": ([wrote(2), listed(2, 2)], (0, 0)),
    "an own write that watches do not tell of": ([wrote(2), listed(2, 2), listed(3, 2)], (1, 0)),
    "watches that begin anew have the time of a list": ([told(1), forgotten, listed(2, 1)], (0, 0)),
    "and no longer": ([told(1), forgotten, listed(2, 1), listed(3, 1)], (1, 0)),
    "watches that stay deaf": ([listed(2, 1), forgotten, listed(2, 1), forgotten, listed(2, 1)], (1, 0)),
    "the end of what watches never told of": ([wrote(2), deleted(), listed(3), listed(4)], (0, 0)),
    "the end of what was written after a watch told of it": ([told(1), wrote(5), listed(6), listed(7)], (0, 1)),
    "an end that was told of late": ([told(1), listed(2), told(2, gone=True), listed(3)], (0, 0)),
    "a cluster that is what it was": ([told(50), listed(60, 50)], (0, 0)),
    "a cluster that was set back": ([told(50), listed(60, 50), listed(30, 20)], (0, 1)),
}


@pytest.mark.parametrize(("steps", "missed"), MISSED.values(), ids=MISSED)
def test_what_watches_missed(steps, missed):
    found = _do(KnownObjects(), steps)
    assert (len(found.changed), found.ended) == missed
    assert bool(found) is any(missed)


@pytest.mark.parametrize(
    "steps",
    [
        [told(1), deleted(), told(3), told(4, gone=True), told(5, uid="2")],
        [told(1), listed(10), told(3), told(4, gone=True), listed(20)],
        [wrote(2), deleted(), listed(3), listed(4)],
    ],
)
def test_no_end_is_remembered_for_longer_than_it_is_needed(steps):
    known = KnownObjects()
    _do(known, steps)
    assert not known._ends


def test_ends_that_no_watch_told_of_are_missed_once_and_forgotten():
    """Otherwise every object that ends between two watches would be known for ever."""
    known = KnownObjects()
    for number in range(100):
        known.report(_item(1, f"p{number}", f"u{number}"), gone=False)
    known.deleted(("default", "p0"), "u0")
    assert not known.audit(ObjectList((), 2))  # on their way
    assert known.audit(ObjectList((), 3)).ended == 100
    assert not known.audit(ObjectList((), 4))
    assert not known._ends
    assert not known._objects


def test_object_belongs_to_the_service_of_its_label():
    known = KnownObjects()
    known.report(_item(1), gone=False)
    known.report(_item(2, service="other"), gone=False)
    assert not known.of_service("default", "demo")
    assert len(known.of_service("default", "other")) == 1
    known.report(_item(3, service=""), gone=False)
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
        known.report(*late.pop(0))

    for _ in range(300):
        step = chance.random()
        if step < 0.4:
            write(chance.choice("abc"))
        elif step < 0.55 and answers:
            answer()
        elif step < 0.6:
            known.audit(ObjectList(tuple(map(copy.deepcopy, there.values())), version))
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
