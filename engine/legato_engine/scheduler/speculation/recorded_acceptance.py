"""Drafts of workers that compute nothing: a profile gives the chance that a draft is right."""

from collections.abc import Callable
from hashlib import blake2b

from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.speculation.drafter import NO_DRAFT, Draft


class RecordedAcceptance:
    """Implements `Drafter`. After right drafts, a draft is right with the chance `acceptance`.

    `next_token` is the token that the worker will sample for a request at a position.
    """

    def __init__(self, acceptance: float, next_token: Callable[[Request, int], int]) -> None:
        self._acceptance = acceptance
        self._next_token = next_token

    def propose(self, request: Request, most: int) -> Draft:
        if not self._acceptance or most <= 0:
            return NO_DRAFT
        known = len(request.tokens)
        places = range(known, known + most)
        return Draft(
            [self._token(request, place) for place in places],
            [self._acceptance ** (1 + place - known) for place in places],
        )

    def _token(self, request: Request, position: int) -> int:
        token = self._next_token(request, position)
        # A CRC would not do: the CRCs of neighbouring positions differ by constants.
        drawn = blake2b(f"{request.id} {request.choice} {position}".encode(), digest_size=4)
        right = int.from_bytes(drawn.digest(), "big") < self._acceptance * (1 << 32)
        return token if right else token ^ 1
