"""Two workers with doors on one node."""

import pytest


@pytest.fixture
def folder(tmp_path_factory):
    """Short enough for the path of a socket."""
    return tmp_path_factory.mktemp("d")


@pytest.fixture
def pair(folder, request):
    """Two of the module's `Worker`."""
    made = [request.module.Worker(folder, name) for name in "ab"]
    yield made
    for worker in made:
        worker.neighbours.close()
