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
    names.HEADER_IGNORED,
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


def headers(origins: Sequence[str], origin: str | None) -> dict[str, str]:
    """For an error that the application has no part in, what `allow` adds to its answers. No cache stores it,
    so it need not tell caches that it is for one page."""
    if origin is None or not ("*" in origins or origin in origins):
        return {}
    allowed = "*" if "*" in origins else origin
    return {"access-control-allow-origin": allowed, "access-control-expose-headers": ", ".join(EXPOSED)}
