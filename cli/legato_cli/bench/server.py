"""The server that is measured: a client for it, and the models that it lists."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

import httpx

API_KEY = "OPENAI_API_KEY"  # the variable that OpenAI's clients read


def connect(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> httpx.AsyncClient:
    """Returns a client with the API key of the environment, and without a limit of connections."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    key = environ.get(API_KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=args.url, timeout=args.timeout, limits=limits, headers=headers)


async def models(client: httpx.AsyncClient) -> list[Mapping[str, Any]]:
    """Returns the models that the server lists, at least one. Raises ValueError with the URL."""
    url = client.base_url.join("/v1/models")
    try:
        response = await client.get("/v1/models")
    except httpx.HTTPError as error:
        raise ValueError(f"cannot reach {url}: {str(error) or type(error).__name__}") from None
    if response.status_code != 200:
        raise ValueError(f"{url} answered {response.status_code}: {response.text[:200]}")
    try:
        listed = list(response.json()["data"])
        str(listed[0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{url} lists no model: {response.text[:200]} (name one with --model)") from None
    return listed


async def first_model(client: httpx.AsyncClient) -> str:
    """Returns the name of the first model that the server lists. Raises ValueError."""
    return str((await models(client))[0]["id"])
