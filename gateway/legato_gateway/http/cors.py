"""Cross-origin resource sharing: which web pages may call the API from a browser. https://fetch.spec.whatwg.org/#cors"""

from collections.abc import Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from legato_protocol import names

MAX_AGE: Final = 600  # seconds for which a browser keeps what a preflight was answered
EXPOSED: Final = (
    "x-request-id",
    "request-id",
    "retry-after",
    "x-should-retry",
    names.HEADER_DROP_REASON,
    names.HEADER_ROUTE,
)


def allow(app: Starlette, origins: Sequence[str]) -> None:
    """Lets pages of these origins call `app`, which answers their preflights; `*` is all of them. Credentials of the
    browser are never allowed: they would let a page act as whoever opens it."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        allow_credentials=False,
        expose_headers=EXPOSED,
        max_age=MAX_AGE,
    )
