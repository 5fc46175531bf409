"""Sends cached blocks to the workers that ask for them."""

from dataclasses import dataclass

from legato_engine.scheduler.handoff.loans import BlockLoans, Loan
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.blocks.spans import WindowBlocks
from legato_engine.transfer.session.events import Aborted, BlocksAsked, Committed


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A loan of blocks that a step still restores from the host's memory."""

    event: BlocksAsked
    loan: Loan


class BlockLenders:
    """Keeps blocks on loan until the borrower has them, or its session has ended."""

    def __init__(self, loans: BlockLoans, agent: TransferAgent) -> None:
        self._loans = loans
        self._agent = agent
        self._waiting: list[_Waiting] = []
        self.lent_blocks = 0

    def on_asked(self, event: BlocksAsked) -> None:
        """A worker asks for cached blocks: lends the leading ones that are here, or refuses.

        It may ask again after it has revoked its grant, which ends a loan of which nothing was sent."""
        key = event.room, event.attempt
        self._waiting = [each for each in self._waiting if (each.event.room, each.event.attempt) != key]
        self._loans.end(key)
        loan = self._loans.lend(key, event.first, event.hashes, event.firsts)
        if loan is None:
            self._agent.abort(event.room, "the blocks are not cached here")
        else:
            self._waiting.append(_Waiting(event, loan))

    def send(self) -> None:
        """Sends blocks on loan that no step moves any longer. Called in every iteration."""
        ready = [each for each in self._waiting if not each.loan.moving]
        self._waiting = [each for each in self._waiting if each.loan.moving]
        for each in ready:
            self._send(each.event, each.loan)

    def on_ended(self, event: Committed | Aborted) -> None:
        """A session has ended. If it had a loan, nothing reads its blocks any longer."""
        self._loans.end((event.room, event.attempt))

    def _send(self, event: BlocksAsked, loan: Loan) -> None:
        blocks = loan.blocks[loan.first :]
        windows = [WindowBlocks(table.first, table.blocks) for table in loan.windows]
        if self._agent.lend(event.room, event.attempt, blocks, event.hashes[: len(blocks)], windows):
            self.lent_blocks += len(blocks)
        else:
            self._loans.end((event.room, event.attempt))  # the session has ended meanwhile
