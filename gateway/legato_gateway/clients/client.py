"""What is known of who sent a request, and what follows from it."""

from dataclasses import dataclass

from legato_gateway.errors import PriorityNotAllowed


@dataclass(frozen=True, slots=True)
class Client:
    """`tenant` decides fair shares and quotas; it is empty if not even an address is known."""

    tenant: str = ""
    max_priority: int | None = None  # None: any
    own_prefix_cache: bool = False  # whether no other tenant's requests share blocks with its own
    by_address: bool = False  # the tenant is only an address, which clients share and change
    max_output: int | None = None  # maximum number of tokens of an answer; None: as many as the service allows

    @property
    def owner(self) -> str:
        """The tenant that stored responses belong to. Clients without a name share one."""
        return "" if self.by_address else self.tenant

    def check_priority(self, priority: int) -> None:
        """Raises PriorityNotAllowed for one that is higher than this client may ask for."""
        if self.max_priority is not None and priority > self.max_priority:
            text = f"priority {priority} is not allowed with this API key (at most {self.max_priority})"
            raise PriorityNotAllowed(text, param="priority")

    def cache_salt(self, asked: str) -> str:
        """What the root of block hashes is salted with, where the request asks for `asked` ("" for none).

        Clients with keys get salts that begin so that no text of a client can be another tenant's."""
        if self.own_prefix_cache:
            return f"tenant\0{self.tenant}\0{asked}"
        return asked and f"shared\0{asked}"
