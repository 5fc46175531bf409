"""Identifies the client of a request: by its API key, by a trusted proxy's header, or else by its address."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from types import MappingProxyType
from typing import Any, Final

from starlette.datastructures import Headers

from legato_gateway.admission.limits import Quota
from legato_gateway.clients.api_keys import Client, KeyFile
from legato_gateway.errors import BadRequest, InvalidAPIKey
from legato_gateway.request import MAX_NAME_CHARACTERS
from legato_protocol import names

API_KEY: Final = "x-api-key"  # sent by clients of Anthropic's API
TRUSTED: Final = "legato.trusted"  # in a scope: it came in at a port that requires the service's token
FORWARDED: Final = "x-forwarded-for"
CLIENT_PREFIX: Final = 64  # bits of an IPv6 address: a client can choose the rest
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Clients:
    """Identifies the client of each request.

    `keys` is None if requests need no key. Requests from `proxies`, which are networks, name their tenant themselves.
    `max_output` is the maximum number of tokens of an answer by tenant ("*": all others). The file with keys overrides
    it."""

    def __init__(
        self,
        keys: KeyFile | None = None,
        proxies: Sequence[Network] = (),
        max_output: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._keys = keys
        self._proxies = tuple(proxies)
        self._max_output = max_output
        self.refused = 0  # requests without a known key

    @property
    def problem(self) -> str:
        """The reason why the file with keys cannot be read, or an empty text."""
        return self._keys.problem if self._keys is not None else ""

    def identify(self, scope: Mapping[str, Any]) -> Client:
        """Returns the client of a request. Raises InvalidAPIKey, BadRequest."""
        client = self._identified(scope)
        most = self._most_output(client.tenant)
        return client if most is None else replace(client, max_output=most)

    def _identified(self, scope: Mapping[str, Any]) -> Client:
        headers = Headers(raw=scope["headers"])
        if scope.get(TRUSTED):
            return Client(_named(headers))
        peer = _address(scope["client"][0]) if scope.get("client") else None
        if self._is_proxy(peer) and headers.get(names.HEADER_TENANT):
            return Client(_named(headers))
        if self._keys is None:
            return _at(self._sender(peer, headers))
        key = _key(headers)
        client = self._keys.keys.client(key) if key else None
        if client is None:
            how = f"`Authorization: Bearer KEY` or `{API_KEY}: KEY`"
            shown = "is not known here" if key else f"is missing: send it as {how}"
            self.refused += 1
            raise InvalidAPIKey(f"the API key {shown}")
        return client

    def _most_output(self, tenant: str) -> int | None:
        by_key = self._keys.keys.max_output if self._keys is not None else {}
        return by_key.get(tenant) or self._max_output.get(tenant) or self._max_output.get("*")

    def _is_proxy(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._proxies)

    def _sender(self, peer: Address | None, headers: Headers) -> Address | None:
        """Returns the client in front of the trusted proxies, if they name it: each appends its client's address."""
        named = ",".join(headers.getlist(FORWARDED)).split(",")
        while self._is_proxy(peer) and named and (before := _address(named.pop())) is not None:
            peer = before
        return peer


class Quotas(Mapping[str, Quota]):
    """Quotas by tenant. The file with keys, which may change, overrides the settings."""

    def __init__(self, settings: Mapping[str, int], keys: KeyFile | None) -> None:
        self._settings = settings
        self._keys = keys

    def __getitem__(self, tenant: str) -> Quota:
        tokens = self._from_keys().get(tenant) or self._settings[tenant]
        return Quota(tokens / 60, tokens)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._settings, **self._from_keys()})

    def __len__(self) -> int:
        return len({**self._settings, **self._from_keys()})

    def _from_keys(self) -> Mapping[str, int]:
        return self._keys.keys.quotas if self._keys is not None else {}


def _address(text: str) -> Address | None:
    """Parses an address. Returns None for other text, such as the path of a socket."""
    try:
        address = ip_address(_without_port(text.strip()))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address  # an IPv6 socket maps IPv4 peers


def _without_port(text: str) -> str:
    """Returns the address in `192.0.2.1:80` or `[2001:db8::1]:80`, which some proxies write."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _at(address: Address | None) -> Client:
    """Returns a client that is only known by its address."""
    if address is None:
        return Client()
    place = IPv6Network((int(address), CLIENT_PREFIX), strict=False) if address.version == 6 else address
    return Client(f"{names.ADDRESS_TENANT}{place}", by_address=True)


def _key(headers: Headers) -> str:
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get(API_KEY, "").strip()


def _named(headers: Headers) -> str:
    tenant = headers.get(names.HEADER_TENANT, "")
    if len(tenant) > MAX_NAME_CHARACTERS:
        text = f"not a valid {names.HEADER_TENANT}: {tenant[:40]!r} (up to {MAX_NAME_CHARACTERS} characters)"
        raise BadRequest(text, param=names.HEADER_TENANT)
    return tenant
