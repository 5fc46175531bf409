"""Cross-origin resource sharing: the web pages that may call the API. https://fetch.spec.whatwg.org/#cors"""

from collections.abc import Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from legato_protocol import names

MAX_AGE: Final = 600  # seconds for which a browser caches the answer to a preflight
EXPOSED: Final = (
    "x-request-id",
    "request-id",
    "retry-after",
    "x-should-retry",
    names.HEADER_DROP_REASON,
    names.HEADER_ROUTE,
    names.HEADER_IGNORED,
)


def allow(app: Starlette, origins: Sequence[str]) -> None:
    """Lets pages of these origins call `app`, which answers their preflights; `*` allows all.

    Browser credentials are never allowed: they would let a page act as its user.
    """
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        allow_credentials=False,
        expose_headers=EXPOSED,
        max_age=MAX_AGE,
    )
