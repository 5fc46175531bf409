"""The sender of a request, and its rights."""

from dataclasses import dataclass

from legato_gateway.errors import PriorityNotAllowed


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
