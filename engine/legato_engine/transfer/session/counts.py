"""Counts of a worker's hand-offs."""

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
    """Counts for metrics and `/state`; totals are since start."""

    sending: int  # active sessions
    receiving: int
    quarantined_blocks: int  # granted blocks of aborted sessions, not yet released
    grants_without_slots: int  # grants that wait for landing slots, if the arena is in GPU memory
    committed: int  # totals, both sides
    aborted: int
    fences: int
    tls_peers: int  # connections whose peer has identified itself, with TLS and without
    plain_peers: int
    refused_peers: int
    refused_plain: int  # of these, peers without TLS although it is required
    failed_tls: int  # of these, peers with a wrong certificate, or a failed TLS handshake
    failed_in_a_row: int  # connections opened here that ended before the peer identified itself; 0 once one does
    bad_messages: int  # malformed, badly sealed, or not in the session's table
    unknown_epochs: int  # refused messages about an arena that neither side has
    corrupt_blocks: int
    bytes_sent: int
    bytes_received: int
