"""A rank's process: `python -m legato_engine.runner.ranks FD PARENT`, started by the first rank, never by hand."""

import faulthandler
import pickle
import signal
import sys
from multiprocessing.connection import Connection

from legato_protocol.process.parent import die_with_parent


def main() -> int:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    if not die_with_parent(parent):
        return 1
    faulthandler.enable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the first rank decides when this one ends
    connection = Connection(descriptor)
    from legato_engine.runner.ranks import follower  # torch is loaded here

    return follower.run(connection, pickle.loads(connection.recv_bytes()))


if __name__ == "__main__":
    sys.exit(main())
