"""Resident adapters, and the removed ones that a worker still keeps."""

from legato_engine.adapters.resident import MOST_WITHDRAWN, OfferedAdapter, ResidentAdapters


def offered(name, digest):
    return OfferedAdapter(name, digest, lambda: None)


def test_only_so_many_that_were_removed_are_kept():
    stays = offered("law", "stays")
    resident = ResidentAdapters([stays], 8, lambda: ())
    for number in range(MOST_WITHDRAWN + 10):
        resident.offer([stays, offered("sql", f"digest {number}")])
    assert resident.former == tuple(f"digest {number}" for number in range(9, MOST_WITHDRAWN + 9))
    assert resident.offered == {"law": "stays", "sql": f"digest {MOST_WITHDRAWN + 9}"}


def test_one_that_comes_again_and_goes_again_is_the_last_to_be_forgotten():
    resident = ResidentAdapters([offered("sql", "again")], 8, lambda: ())
    resident.offer([])
    for number in range(MOST_WITHDRAWN - 1):
        resident.offer([offered("law", f"digest {number}")])
    resident.offer([offered("sql", "again")])
    resident.offer([offered("law", "last")])
    assert resident.offered == {"sql": "again", "law": "last"}
    resident.offer([offered("law", "another")])
    assert resident.offered == {"sql": "again", "law": "another"}
