"""Places for connections: who makes room for whom, what is counted, and what is logged."""

import errno
import logging
import os
from collections import Counter
from unittest.mock import Mock

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_gateway import Clock

from legato_gateway.http.connections import limits
from legato_gateway.http.connections.limits import (
    BETWEEN_LINES,
    CONNECTIONS_FULL,
    LATE_HEAD,
    MADE_ROOM,
    NO_DESCRIPTORS,
    NO_ROOM,
    OWN_PORTS,
    YOUNG,
    ConnectionLimits,
    Connections,
)

PUBLIC, HEALTH = 8080, 8081


class Client:
    def __init__(self) -> None:
        self.closed = False

    def make_room(self) -> None:
        self.closed = True


def owner(most: int) -> tuple[Connections, Clock, Counter[str]]:
    clock, counted = Clock(), Counter[str]()
    return (
        Connections(
            ConnectionLimits(most=most), PUBLIC, lambda r: counted.update([r]), clock, lambda r: counted.update([r])
        ),
        clock,
        counted,
    )


def test_the_connection_that_waits_longest_for_a_request_makes_room_and_no_busy_one():
    places, clock, counted = owner(3)
    clients = busy, _, _, new = [Client() for _ in range(4)]
    assert all(places.enter(client, PUBLIC) for client in clients[:3])
    places.waits(busy, False)
    clock.now += YOUNG
    assert places.enter(new, PUBLIC)
    assert [client.closed for client in clients] == [False, True, False, False]
    assert (places.open, counted) == (3, {MADE_ROOM: 1})
    places.check_integrity()


def test_a_new_one_is_refused_where_all_have_requests_or_are_young():
    places, _, counted = owner(2)
    busy, young = Client(), Client()
    assert places.enter(busy, PUBLIC)
    places.waits(busy, False)
    assert [places.enter(client, PUBLIC) for client in (young, Client())] == [True, False]
    assert (busy.closed, young.closed, counted) == (False, False, {NO_ROOM: 1, CONNECTIONS_FULL: 1})
    places.leave(busy)
    assert places.enter(Client(), PUBLIC)


def test_other_ports_have_places_of_their_own():
    places, _, counted = owner(1)
    assert places.enter(Client(), PUBLIC)
    assert not places.enter(Client(), PUBLIC)
    probes = [places.enter(Client(), HEALTH) for _ in range(OWN_PORTS + 1)]
    assert probes == [True] * OWN_PORTS + [False]
    assert counted == {NO_ROOM: 2, CONNECTIONS_FULL: 1}, "probes are not requests of clients"


@settings(max_examples=times(40), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "busy", "waits", "later"]), st.integers(0, 7))))
def test_the_books_agree_after_any_steps(steps):
    places, clock, _ = owner(4)
    clients = [Client() for _ in range(8)]
    inside: set[Client] = set()
    for what, which in steps:
        client = clients[which]
        if what == "enter" and client not in inside:
            client.closed = False
            inside |= {client} if places.enter(client, PUBLIC) else set()
        elif what == "leave":
            places.leave(client)
            inside.discard(client)
        elif what == "later":
            clock.now += YOUNG
        else:
            places.waits(client, what == "waits")
        inside = {each for each in inside if not each.closed}
        assert places.open == len(inside) <= 4
        places.check_integrity()


def test_every_one_is_counted_and_a_flood_of_them_is_a_few_lines(caplog):
    places, clock, counted = owner(1)
    for number in range(101):
        clock.now += BETWEEN_LINES if number == 100 else 0
        places.refused(LATE_HEAD, "late")
    assert counted == {LATE_HEAD: 101}
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "99 more" in caplog.text


async def test_descriptors_that_ran_out_are_logged(caplog, monkeypatch):
    places, _, counted = owner(1)
    await places.check_descriptors()
    assert not counted
    monkeypatch.setattr(os, "dup", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    await places.check_descriptors()
    assert counted == {NO_DESCRIPTORS: 1}
    assert "no file descriptor is left" in caplog.text


@pytest.mark.parametrize(("files", "most"), [(256, 128), (1024, 768), (1 << 20, 4096)])
def test_places_leave_descriptors_for_the_gateways_own(files, most):
    assert limits.places(4096, files) == most
