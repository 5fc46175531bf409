"""`legato state`: prints the gateways' view of workers and recent requests as JSON."""

import argparse
import json
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from legato_cli.errors import ServiceUnavailable
from legato_cli.services import options

if TYPE_CHECKING:
    from legato_cli.ui.target import TargetSource

TIMEOUT = 5.0  # seconds for a gateway's answer
HELP = "show workers and recent requests of a running service as JSON"
add_flags = options.add_service


def run(args: argparse.Namespace) -> int:
    """Prints an object for each gateway. Exit code 1: the service is missing, or a gateway does not answer."""
    import asyncio

    from legato_cli.ui import sources

    for state in asyncio.run(read(sources.source(args.namespace, args.service))):
        print(json.dumps(state, indent=2))
    return 0


async def read(source: "AbstractAsyncContextManager[TargetSource]") -> list[dict[str, Any]]:
    """Returns the answer of `GET /state` of each gateway, with the gateway's name first. Raises ServiceUnavailable."""
    import aiohttp

    async with source as targets, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as session:
        target = await targets.find()
        if not target.gateways:
            raise ServiceUnavailable("no gateway of this service is ready")
        states, headers = [], {"authorization": f"Bearer {target.token}"}
        for gateway in target.gateways:
            try:
                async with session.get(f"{gateway.url}/state", headers=headers, **gateway.trust) as answer:
                    answer.raise_for_status()
                    states.append({"gateway": gateway.name, **await answer.json()})
            except (aiohttp.ClientError, TimeoutError) as error:
                why = str(error) or type(error).__name__
                raise ServiceUnavailable(f"gateway {gateway.name} does not report its state: {why}") from None
        return states
