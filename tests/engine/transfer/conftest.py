"""Two agents in virtual time, for every test that asks for them."""

import pytest
from handoff_pair import Pair


@pytest.fixture
def pair():
    return Pair()
