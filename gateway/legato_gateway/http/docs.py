"""`/docs`: a page that shows `/openapi.json`. It is a single file, and loads nothing from elsewhere."""

import base64
import hashlib
import re
from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH: Final = "/docs"
_FILE: Final = "docs.html"
_INLINE: Final = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def page() -> Route:
    """Returns the page, which is read once. It has no data, and its policy allows only the content of the file."""
    content = (resources.files("legato_gateway.http") / _FILE).read_text()
    policies = ["default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'"]
    for kind, inline in _INLINE.findall(content):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        policies.append(f"{kind}-src 'sha256-{digest}'")
    headers = {
        "content-security-policy": "; ".join([*policies, "frame-ancestors 'none'"]),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }

    async def answer(_request: Request) -> Response:
        return Response(content, media_type="text/html", headers=headers)

    return Route(PATH, answer)
