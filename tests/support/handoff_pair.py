"""Two agents in virtual time, with a link in memory between them; and strangers that say whatever a test wants."""

import torch
from staged_arena import DirectArena, StagedArena

from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.blocks.spans import no_windows
from legato_engine.transfer.connections.peers import Peers
from legato_engine.transfer.connections.seals import prove
from legato_engine.transfer.fakes.late_device import LateDirect, LateStream
from legato_engine.transfer.fakes.late_node import LateNeighbours, LatePulls
from legato_engine.transfer.fakes.memory import MemoryLink, Network
from legato_engine.transfer.identity import TransferArena, TransferIdentity, TransferPolicy
from legato_engine.transfer.link import Connected, Received
from legato_engine.transfer.node.interface import NodeMemory
from legato_engine.transfer.session.events import Arrived, Committed
from legato_protocol.wire import block_hash, handoff
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Peer

BLOCK, BLOCK_BYTES, BLOCKS = 4, 64, 8
ROOT = block_hash.root("kv")
TOKENS = pack_tokens(range(4 * BLOCK))
HASHES = block_hash.chain(TOKENS, BLOCK, ROOT)


def wait(holds, turn):
    """Takes turns until it holds. Raises AssertionError when it does not in the end."""
    for _ in range(200):
        if holds():
            return
        turn()
    raise AssertionError("waited for what does not happen")


class Side:
    def __init__(self, network, name, fill, staged=None, direct=None, node=None, **settings):
        """`staged` are the arguments of a `StagedArena` after its time, `direct` those of a `DirectArena`; `node`, of a
        worker whose arena others on its node read: random numbers, the longest delay of a copy, and the chance that an
        arena cannot be opened."""
        self.arena = torch.full((BLOCKS, BLOCK_BYTES), fill, dtype=torch.uint8)
        memory = ArenaMemory(self.arena, BLOCKS)
        self.staged = StagedArena(memory, network, *staged) if staged else None
        self.staged = DirectArena(memory, network, *direct) if direct else self.staged
        epoch = settings.pop("epoch", f"epoch-{name}")
        self.node = NodeMemory()
        if node:
            random, delay, closed = node
            pulls = LatePulls(network, memory, LateStream(network, random, delay))
            streams = [LateStream(network, random, delay) for _ in range(2)]
            sums = LateDirect(memory, *streams) if staged else None
            self.node = NodeMemory(LateNeighbours(network, epoch, memory, closed), pulls, sums)
        reached = self.staged.memory if self.staged else memory
        self.link = MemoryLink(network, name, reached.address, reached.length)
        channels = settings.get("channels")
        self.peer = Peer(name, epoch, self.link.address, channels is not None and channels.tls)
        self.seen = []
        rules = {key: settings.pop(key) for key in ("checksum", "lease") if key in settings}
        usual = {"worker": name, "epoch": epoch, "kv_revision": "kv", "layout": "tiny", "token": "secret"}
        self.agent = TransferAgent(
            self.link,
            TransferArena(
                memory,
                BLOCK,
                self.staged.staging if self.staged else None,
                self.staged.direct if self.staged else None,
                settings.pop("first_blocks", no_windows),
                self.node,
            ),
            TransferIdentity(**{**usual, **settings}),
            network.clock,
            TransferPolicy(**{"lease": 1.0, **rules}),
        )

    def events(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]

    def sent(self, kind):
        """Everything of this kind that its agent sends from now on."""
        seen, send = [], self.agent._peers.send

        def watch(number, message):
            seen.extend([message] if isinstance(message, kind) else [])
            send(number, message)

        self.agent._peers.send = watch
        return seen

    def poll(self):
        self.seen += self.agent.poll()
        self.agent.check_integrity()

    def say(self, message, to):
        """Over its connection to that side, whatever a test wants."""
        peers = self.agent._peers
        peers.send(
            next(number for number in peers._connections if peers.identity(number)[0] == to.peer.worker), message
        )


class Pair:
    def __init__(self, sender=None, receiver=None, **settings):
        """Each side may have settings of its own."""
        self.network = Network()
        self.sender = Side(self.network, "sender", 7, **settings, **(sender or {}))
        self.receiver = Side(self.network, "receiver", 0, **settings, **(receiver or {}))

    def run(self, seconds=0.5):
        for _ in range(round(seconds / 0.05)):
            for side in (self.sender, self.receiver):
                if not side.link.stopped:
                    side.poll()
            self.deliver()

    def say(self, side, message, seconds=0.5):
        """One side says to the other whatever a test wants, and time passes."""
        side.say(message, self.receiver if side is self.sender else self.sender)
        self.run(seconds)

    def wait(self, holds):
        wait(holds, lambda: self.run(0.05))

    def deliver(self):
        """Has everything in flight arrive; nobody looks at it yet."""
        self.network.run(self.network.now + 0.05)

    def begin(self, table=range(4), cached=0):
        """Both sides know of room 1."""
        self.expect()
        self.grant(table, cached)
        self.run()

    def expect(self, attempt=1):
        self.sender.agent.expect(1, attempt, self.receiver.peer, ROOT)

    def grant(self, table=range(4), cached=0, attempt=1):
        self.receiver.agent.grant(1, attempt, self.sender.peer, table, cached, ROOT)

    def connect(self, room=9, table=(7,)):
        """By a room of their own, which nothing is done about."""
        self.offer(room, table)
        self.run()
        self.sender.seen.clear()
        self.receiver.seen.clear()

    def offer(self, room, table):
        """Both sides know of another room."""
        self.sender.agent.expect(room, 1, self.receiver.peer, ROOT)
        self.receiver.agent.grant(room, 1, self.sender.peer, table, 0, ROOT)

    def push(self, first, last):
        self.sender.agent.push(1, first, range(first, last), HASHES[first:last])

    def hand_over(self):
        """All of room 1 is sent, and arrives where nothing is in the way."""
        self.send()
        self.run()

    def arrives(self):
        """True if the hand-off of room 1 still comes to a good end."""
        self.run()
        self.hand_over()
        return len(self.receiver.events(Arrived)) == len(self.sender.events(Committed)) == 1

    def revoke(self):
        """The receiver takes its grant of room 1 back, and the sender hears of it."""
        self.receiver.agent.revoke(1)
        self.run()

    def send(self):
        self.sender.agent.push(1, 0, range(4), HASHES)
        self.sender.agent.finish(1, TOKENS, 4 * BLOCK, ())


class Stranger:
    """A worker with the service's token that says over a real link whatever a test wants."""

    def __init__(self, pair, to=None, name="stranger", at=None):
        """It connects to the receiver unless told otherwise, from the address `at` if that is not its name."""
        self.link = MemoryLink(pair.network, at or name, pair.sender.arena.data_ptr(), pair.sender.arena.numel())
        proof = prove("secret", name, f"epoch-{name}")
        hello = handoff.PeerHello(name, f"epoch-{name}", "kv", "tiny", self.link.address, 0, self.link.rkey, proof)
        self.peers = Peers(self.link, hello, "secret", 10.0, pair.network.clock)
        self.pair = pair
        self.heard = []
        self.number = self.peers.reach((to or pair.receiver).peer)
        wait(lambda: self.peers.is_trusted(self.number), self.turn)

    def turn(self):
        self.pair.run(0.1)
        for event in self.link.poll():
            match event:
                case Connected(number, accepted):
                    self.peers.on_connected(number, accepted)
                case Received(number, data):
                    self.heard.append(self.peers.receive(number, data))

    def say(self, message):
        self.peers.send(self.number, message)
        self.turn()
