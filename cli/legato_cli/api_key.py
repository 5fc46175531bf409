"""`legato api-key`: makes an API key, and the entry with its hash for the gateway."""

import argparse
import json
import secrets

from legato_protocol.settings import flags

PREFIX = "sk-legato-"
RANDOM_BYTES = 32
HELP = "make an API key, and the entry of its hash for api-keys.json"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    flags.option(
        parser, "tenant", kind=flags.text("TENANT"), help="the tenant that uses it, and whose share and quota apply"
    )


def run(args: argparse.Namespace) -> int:
    """Prints both, and stores neither."""
    key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    print(f"key, for the client: {key}")
    print(f"api-keys.json:       {json.dumps(entry(args.tenant, key))}")
    return 0


def entry(tenant: str, key: str) -> dict[str, object]:
    """Returns the content of a file with only this key."""
    from legato_gateway.clients import api_keys

    return {"tenants": {tenant: {"keys": [api_keys.digest(key)]}}}
