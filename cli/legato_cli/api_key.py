"""`legato api-key`: makes an API key, and what the gateway has to know of it."""

import argparse
import json
import secrets

from legato_protocol.settings import flags

PREFIX = "sk-legato-"
RANDOM_BYTES = 32


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `legato api-key`."""
    parser = subparsers.add_parser("api-key", help="make an API key, and the entry of its hash for api-keys.json")
    flags.option(parser, "tenant", kind=flags.text("TENANT"), help="who gets it: its fair share and quota are of them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints both. Neither is kept here."""
    key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    print(f"key, for the client: {key}")
    print(f"api-keys.json:       {json.dumps(entry(args.tenant, key))}")
    return 0


def entry(tenant: str, key: str) -> dict[str, object]:
    """A file with this key alone."""
    from legato_gateway.clients import api_keys

    return {"tenants": {tenant: {"keys": [api_keys.digest(key)]}}}
