"""Counts of a worker's hand-offs."""

from dataclasses import dataclass


@dataclass(slots=True)
class TransferTotals:
    """Totals since start."""

    committed: int = 0
    aborted: int = 0
    fences: int = 0
    bad_messages: int = 0
    unknown_epochs: int = 0
    corrupt_blocks: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_pulled: int = 0


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
    refused_plain: int  # of `refused_peers`: without TLS, although it is required
    failed_tls: int  # of `refused_peers`: a wrong certificate, or a failed TLS handshake
    failed_in_a_row: int  # connections opened here that ended before the peer identified itself; 0 once one does
    bad_messages: int  # malformed, with a wrong seal, or not allowed in the session's state
    unknown_epochs: int  # ignored messages whose epoch is neither side's
    corrupt_blocks: int
    bytes_sent: int
    bytes_received: int
    bytes_pulled: int  # of `bytes_received`: copied from the memory of workers of the same node
    readable_peers: int  # connections to workers of the same node whose memory is read
    unreadable_peers: int  # connections to workers of the same node whose memory cannot be read
