"""What a worker counts of its hand-offs."""

from dataclasses import dataclass


@dataclass(slots=True)
class TransferTotals:
    """Counted since start."""

    committed: int = 0
    aborted: int = 0
    fences: int = 0
    bad_messages: int = 0
    unknown_epochs: int = 0
    corrupt_blocks: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """For metrics and `/state`; totals count since start."""

    sending: int  # sessions under way
    receiving: int
    quarantined_blocks: int  # granted blocks of aborted sessions, not yet released
    grants_without_slots: int  # that wait until others have landed, where UCX does not reach the arena
    committed: int  # totals, both sides
    aborted: int
    fences: int
    tls_peers: int  # connections whose peer has said who it is, with TLS and without
    plain_peers: int
    refused_peers: int
    refused_plain: int  # of these, those that spoke no TLS and had to
    failed_tls: int  # of these, those with a wrong certificate, or without TLS where it was asked for
    failed_in_a_row: int  # connections opened here that ended before the peer identified itself; 0 once one does
    bad_messages: int  # malformed, badly sealed, or no move of the session's table
    unknown_epochs: int  # messages about an arena that neither side has: refused
    corrupt_blocks: int
    bytes_sent: int
    bytes_received: int
