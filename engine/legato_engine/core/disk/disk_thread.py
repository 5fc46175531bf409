"""The thread that reads and writes files of KV blocks, so that neither the loop nor a step waits for a disk."""

import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread

from legato_engine.core.disk.block_folder import BadFile, BlockFolder
from legato_engine.kvcache.disk_tier import Order, Outcome, RemoveBlock, WriteBlock
from legato_engine.mailbox import Mailbox
from legato_engine.transfer.device.interface import POLL_INTERVAL, DeviceEvent


class DiskThread:
    """Carries out orders one after another. `slot` returns the memory of a host slot."""

    def __init__(self, folder: BlockFolder, slot: Callable[[int], memoryview]) -> None:
        self._folder = folder
        self._slot = slot
        self._orders: SimpleQueue[tuple[Sequence[Order], DeviceEvent | None]] = SimpleQueue()
        self._done: Mailbox[Outcome] = Mailbox()
        Thread(target=self._run, name="kv-files", daemon=True).start()

    def submit(self, orders: Sequence[Order], after: DeviceEvent | None) -> None:
        """Queues orders, to be carried out after `after` is done: until then, a device may still move blocks."""
        self._orders.put((orders, after))

    def take(self) -> list[Outcome]:
        """Returns the outcomes of reads and writes since the last call."""
        return self._done.take()

    def fileno(self) -> int:
        """A descriptor that is readable while `take` has outcomes."""
        return self._done.fileno()

    def _run(self) -> None:
        while True:
            orders, after = self._orders.get()
            while after is not None and not after.done():
                time.sleep(POLL_INTERVAL)
            for order in orders:
                self._carry_out(order)

    def _carry_out(self, order: Order) -> None:
        began, error = time.monotonic(), ""
        try:
            if isinstance(order, RemoveBlock):
                self._folder.remove(order.content)
            elif isinstance(order, WriteBlock):
                self._folder.write(order.content, self._slot(order.slot))
            else:
                self._folder.read(order.content, self._slot(order.slot))
        except (OSError, BadFile) as fault:
            what = "written" if isinstance(order, WriteBlock) else "read"
            error = f"a KV block cannot be {what}: {fault}"
        if not isinstance(order, RemoveBlock):
            self._done.put(Outcome(order, time.monotonic() - began, error))
