"""Clients and their rights, and the file with the hashes of API keys and the tenant of each.

    {"tenants": {"team-a": {"keys": ["sha256:9f86…"], "maxPriority": 10, "tokensPerMinute": 60000,
                            "maxOutputTokens": 1024}}}

Keys are random, so a plain SHA-256 is enough: nothing can be guessed.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from legato_gateway.errors import PriorityNotAllowed
from legato_gateway.request import MAX_NAME_CHARACTERS, PRIORITY
from legato_protocol.process.followed_files import INTERVAL, FollowedFiles, InvalidFile

MOST_TOKENS: Final = 10**12
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Client:
    """`tenant` decides fair shares and quotas; it is empty if not even an address is known."""

    tenant: str = ""
    max_priority: int | None = None  # None: any
    own_prefix_cache: bool = False  # True if no other tenant's requests share its blocks
    by_address: bool = False  # the tenant is only an address, which clients share and change
    max_output: int | None = None  # maximum number of tokens of an answer; None: the service's bound

    @property
    def owner(self) -> str:
        """The tenant that stored responses belong to. Clients without a name share one."""
        return "" if self.by_address else self.tenant

    def check_priority(self, priority: int) -> None:
        """Raises PriorityNotAllowed for a higher one than this client may use."""
        if self.max_priority is not None and priority > self.max_priority:
            text = f"priority {priority} is not allowed with this API key (at most {self.max_priority})"
            raise PriorityNotAllowed(text, param="priority")

    def cache_salt(self, asked: str) -> str:
        """Returns the salt of the root of block hashes, where the request has the salt `asked` ("": none).

        The prefix of a tenant's salt is one that no client's text can produce."""
        if self.own_prefix_cache:
            return f"tenant\0{self.tenant}\0{asked}"
        return asked and f"shared\0{asked}"


class InvalidAPIKeys(InvalidFile):
    """A file that breaks this format. The text says where and why."""


class _Tenant(msgspec.Struct, forbid_unknown_fields=True, rename="camel", frozen=True):
    keys: Annotated[list[str], Meta(min_length=1)]
    max_priority: Annotated[int, Meta(ge=int(PRIORITY.least), le=int(PRIORITY.most))] = 0
    tokens_per_minute: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None = None
    shared_prefix_cache: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    tenants: dict[str, _Tenant]


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """`clients` by the digest of their keys; `quotas` in tokens per minute, and `max_output` in tokens, by tenant."""

    clients: Mapping[str, Client] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    max_output: Mapping[str, int] = field(default_factory=dict)

    def client(self, key: str) -> Client | None:
        """Returns the client with this key, or None."""
        return self.clients.get(digest(key))


def digest(key: str) -> str:
    """Returns the form of a key in the file."""
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()}"


def parse(content: bytes) -> ClientKeys:
    """Parses the keys in a file. Raises InvalidAPIKeys."""
    try:
        tenants = msgspec.json.decode(content, type=_File).tenants
    except msgspec.DecodeError as error:
        raise InvalidAPIKeys(str(error)) from None
    clients: dict[str, Client] = {}
    for name, tenant in tenants.items():
        if not (name.isprintable() and 1 <= len(name) <= MAX_NAME_CHARACTERS) or name == "*":
            allowed = f"1 to {MAX_NAME_CHARACTERS} printable characters, and not *"
            raise InvalidAPIKeys(f"not a valid tenant: {name[:60]!r} ({allowed})")
        for number, key in enumerate(tenant.keys):
            at = f"$.tenants[{name!r}].keys[{number}]"
            if not _DIGEST.fullmatch(key):
                # Not repeated: it may be the key itself.
                raise InvalidAPIKeys(f"not a hash at {at} (sha256: and 64 hex digits, as `legato api-key` prints)")
            if key in clients:
                raise InvalidAPIKeys(f"the key at {at} is also one of {clients[key].tenant!r}")
            clients[key] = Client(name, tenant.max_priority, not tenant.shared_prefix_cache)
    quotas = {name: tenant.tokens_per_minute for name, tenant in tenants.items()}
    max_output = {name: tenant.max_output_tokens for name, tenant in tenants.items()}
    return ClientKeys(clients, _given(quotas), _given(max_output))


def _given(by_tenant: Mapping[str, int | None]) -> dict[str, int]:
    return {tenant: tokens for tenant, tokens in by_tenant.items() if tokens is not None}


class KeyFile(FollowedFiles[ClientKeys]):
    """Follows the file, so that keys change without a restart. `keys` come from the last good one."""

    def __init__(self, path: Path, interval: float = INTERVAL) -> None:
        """Raises InvalidFile: a gateway does not start without the keys that it must require."""
        super().__init__("API keys", (path,), parse, interval)

    @property
    def keys(self) -> ClientKeys:
        """The current keys."""
        return self.value
