"""One message of every kind that two processes exchange."""

from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire import handoff, kv_events, stream
from legato_protocol.wire.load import DecodeCoefficients, Load, PrefillCoefficients, TenantService
from legato_protocol.wire.packed_logprobs import PackedLogprobs
from legato_protocol.wire.packed_tokens import pack_tokens

PARAMS = SamplingParams(max_tokens=64, seed=2**62, temperature=0.7, logit_bias={5: -100.0}, stop_token_ids=(2,))
SEQUENCE = stream.Sequence(pack_tokens(range(100)), 100, PARAMS, 30.0, choices=(0, 1))
PEER = stream.Peer("decode-0", "00ff", b"\x01\x02")
ITEM = stream.TokenItem("r1", 1, 0, 7, (42,), (stream.TokenLogprobs(-0.5, (stream.TopLogprob(42, -0.5),)),), "stop", 16)
PREFILL = PrefillCoefficients(0.006, 5e-4, 1.5e-7, 512, 256.0)
TO_WORKER = [
    stream.Greeting("gw"),
    stream.Generate("r1", 1, SEQUENCE),
    stream.Prefill("r1", 1, 9, SEQUENCE, PEER),
    stream.Decode("r1", 1, 9, SEQUENCE, PEER),
    stream.Handoff("r1", 2, 10, PEER),
    stream.Cancel("r1", 2, (0, 3)),
    stream.Split("r1", 2, {0: "r1/0", 2: "r1/2"}),
    stream.Pause("r1", 2, True),
]
FROM_WORKER = [
    stream.Hello("w", "e", "decode", "kv", "weights", "layout", 16, 100, 4096, b"addr", "ucx:tcp"),
    stream.Tokens((ITEM,)),
    Load(
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        tokens_by_tenant={"a": 5},
        prefill_cost=PREFILL,
        decode_cost=DecodeCoefficients(1, 2, 3),
        served_elsewhere={"a": TenantService(5, 6)},
    ),
    stream.HandoffReport("r1", 1, 9, "prefill-0", 16, 0, 1 << 20, 0.01, 0.002, "ucx:tcp"),
    stream.Failed("r1", 1, "transfer", "checksum of block 3", "transfer", True),
    stream.Started("r", 1),
    stream.PromptLogprobs("r1", 1, 1, PackedLogprobs(1, bytes(16), bytes(8), bytes(8))),
    stream.Lost("e", "the core was silent for 15 seconds", True),
]
EVENTS = [
    kv_events.Snapshot("e", 5, 0, True, b"h" * 32),
    kv_events.Stored("e", 6, b"h" * 16),
    kv_events.Removed("e", 7, b"h" * 16),
]
REQUESTS = [kv_events.SnapshotRequest(), stream.Greeting("gw")]
PEER_MESSAGES = [
    handoff.PeerHello("w", "e", "kv", "layout", b"addr", 1 << 47, b"rkey", b"proof"),
    handoff.Grant("e", 9, 1, (4, 5, 6), 2, 10.0, 3),
    handoff.Revoke("e", 9, 1, 3),
    handoff.Revoked("e", 9, 1, 3),
    handoff.Written("e", 9, 1, 2, (2**64 - 1, 0)),
    handoff.Final("e", 9, 1, pack_tokens([1, 2]), 1, (ITEM,), 1),
    handoff.Renew("e", 9, 1),
    handoff.Commit("e", 9, 1),
    handoff.Abort("e", 9, 1, "cancelled"),
    handoff.AbortAck("e", 9, 1),
]
