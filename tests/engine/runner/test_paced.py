"""The runner that computes nothing: its times, its tokens, its KV."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from legato_engine.core.assembly import scheduler_limits
from legato_engine.errors import ModelNotFound, UnusableProfile
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.window_table import WindowTable
from legato_engine.runner import paced
from legato_engine.runner.paced import PacedRunner, token_at
from legato_engine.runner.profile import Profile, StepTimes
from legato_engine.scheduler.batch import Batch, Draw, Row
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.settings.flags import SettingsError

TIMES = StepTimes(0.5, 0.25, 0.001, 0.01, 0.0001)
PROFILE = Profile("a test", TIMES, kv_tokens=64, start_seconds=4)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 300,
    "max_position_embeddings": 48,
}


class Time:
    """A clock that goes on by a little whenever it is read, as real work takes time; and while something sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, 0

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds


def runner(time: Time | None = None, block_size: int = 4, digest: str = "m", **changes: object) -> PacedRunner:
    time, profile = time or Time(), msgspec.structs.replace(PROFILE, **changes)
    return PacedRunner(profile, block_size, 300, digest, time.clock, time.sleep)


def draw(position: int = 9, **params: object) -> Draw:
    return Draw(0, position, SamplingParams(**{"max_tokens": 5, "seed": 7, **params}), [1], 1)


def decoding(start: int) -> Row:
    return Row([7], start, range(16), (draw(start + 1),))


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ((), 0.5),
        ((decoding(10),), 0.5 + 0.25 + 0.001 * 10),
        ((decoding(10), decoding(30)), 0.5 + 0.5 + 0.001 * 40),
        ((Row(range(20), 4, range(16)),), 0.5 + 0.01 * 20 + 0.0001 * 20 * 14),
        ((decoding(10), Row(range(20), 4, range(16), (draw(),))), 0.5 + 0.25 + 0.01 + 0.2 + 0.0001 * 20 * 14),
        ((Row([1], 4, range(16)),), 0.5 + 0.01 * 1 + 0.0001 * 4.5),
    ],
)
def test_a_step_takes_what_its_profile_says_whatever_it_did_meanwhile(rows: tuple[Row, ...], seconds: float) -> None:
    time = Time()
    runner(time=time).step(Batch(rows))
    assert time.now == pytest.approx(0.001 + seconds, abs=1e-9)
    assert time.slept == 1


@pytest.mark.parametrize(("pause", "seconds"), [(0.0, 0.76), (0.45, 0.76), (0.6, 0.6 + 0.76)])
def test_a_step_includes_the_work_since_the_last_one_up_to_the_time_of_every_step(pause: float, seconds: float) -> None:
    time = Time()
    given = runner(time=time)
    given.step(Batch((decoding(10),)))
    ended = time.now
    time.now += pause
    given.step(Batch((decoding(10),)))
    assert time.now - ended == pytest.approx(seconds, abs=0.002)


def test_a_token_follows_only_from_seed_choice_and_position() -> None:
    (first,) = runner().step(Batch((Row([1], 8, range(16), (draw(),)),)))
    rows = decoding(3), Row([1, 2, 3], 6, range(8), (draw(),))
    _, second = runner(block_size=8, source="another").step(Batch(rows))
    assert first == second
    assert first[0].token == token_at(draw().params, 0, 9, 300)
    ways = (7, 0, 9), (8, 0, 9), (7, 1, 9), (7, 0, 10)
    assert len({token_at(draw(seed=seed).params, choice, position, 300) for seed, choice, position in ways}) == 4
    assert all(0 <= token_at(draw(seed=seed).params, 0, 9, 300) < 300 for seed in range(2000))


def test_no_token_ends_a_sequence_before_its_length() -> None:
    free = token_at(draw().params, 0, 9, 300)
    stops = (free, (free + 1) % 300)
    assert token_at(draw(stop_token_ids=stops).params, 0, 9, 300) == (free + 2) % 300


def test_the_kv_of_a_token_lies_in_its_block_and_is_copied_whole() -> None:
    given = runner()
    given.step(Batch((Row([11, 12, 13, 14, 15], 2, (3, 1)),)))
    assert given.arena.blocks[3].tolist() == [0, 0, 11, 12]
    assert given.arena.blocks[1].tolist() == [13, 14, 15, 0]
    windowed = runner(windows=(6,))
    windowed.step(Batch((Row([11, 12, 13], 7, (3, 1, 0), windows=(WindowTable(1, [7, 9]),)),)))
    assert windowed.arena.blocks[[1, 0, 7, 9]].tolist() == [[0, 0, 0, 11], [12, 13, 0, 0]] * 2
    given.step(Batch((), copies=((1, 5),)))
    assert given.arena.blocks[5].tolist() == [13, 14, 15, 0]
    memory = ArenaMemory(given.arena.blocks, given.num_blocks)
    assert (memory.address, memory.length) == (given.arena.address, given.arena.nbytes)
    assert memory.block_bytes == given.layout.block_bytes == len(given.arena.block(5))
    assert memory.sums([1]) == memory.sums([5]) != memory.sums([3])
    assert bytes(given.arena.block(5)[:8]) == (13).to_bytes(8, "little")


def test_only_workers_of_one_profile_and_model_exchange_kv() -> None:
    """Their degrees may differ."""
    slower = StepTimes(0.6, 0.25, 0.001, 0.01, 0.0001)
    others = runner(source="another"), runner(digest="n"), runner(block_size=8)
    revisions = [each.kv_revision for each in (runner(), *others)]
    assert runner(step=slower, kv_tokens=128, tensor=2).kv_revision == revisions[0]
    assert len(set(revisions)) == 4
    assert runner().weights == runner(source="another").weights != runner(digest="n").weights


def settings(profile: Path, **given: object) -> WorkerSettings:
    return WorkerSettings("decode", "d0", "m", **{"runner": "paced", "profile": str(profile), "block_size": 4, **given})


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(PROFILE))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return path


def test_a_start_takes_what_the_profile_says_and_reads_no_weights(profile: Path) -> None:
    time, told = Time(), list[float]()
    loaded = paced.load(
        settings(profile), profile.parent, lambda _what, share: told.append(share), time.clock, time.sleep
    )
    assert time.now == pytest.approx(4, abs=0.05)
    assert told == sorted(told)
    assert len(told) >= 8, "a start that says nothing is taken for stuck"
    assert (loaded.vocab_size, loaded.max_length, loaded.runner.num_blocks) == (300, 48, 16)
    ranks = paced.load(settings(profile, tensor=2), profile.parent, lambda *_: None, time.clock, time.sleep)
    assert ranks.runner.num_blocks == 32


def test_what_cannot_be_served_is_refused(profile: Path, tmp_path: Path) -> None:
    def load(folder: Path = tmp_path, **given: object) -> None:
        time = Time()
        paced.load(settings(profile, **given), folder, lambda *_: None, time.clock, time.sleep)

    with pytest.raises(SettingsError, match="--max-length is 99; this model allows at most 48"):
        load(max_length=99)
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        load(folder=tmp_path.parent)
    few = msgspec.structs.replace(PROFILE, kv_tokens=47)
    profile.write_bytes(msgspec.json.encode(few))
    with pytest.raises(UnusableProfile, match=r"kvTokens: 47 hold 11 blocks of 4 tokens.*--max-length of at most 44"):
        load(max_length=48)
    load(max_length=44)


@pytest.mark.parametrize(
    ("kv_tokens", "given", "expected"),
    [(64, {}, (48, 64)), (47, {}, (44, 64)), (48 * 200, {}, (48, 192)), (48 * 5000, {}, (48, 1024)),
     (48 * 200, {"max_batch": 7, "max_length": 16}, (16, 7))],
    ids=["the model's length", "what the cache holds", "a multiple of 64", "at most 1,024", "as asked"],
)  # fmt: skip
def test_sizes_follow_the_profile(
    kv_tokens: int, given: dict[str, int], expected: object, profile: Path, tmp_path: Path
) -> None:
    profile.write_bytes(msgspec.json.encode(msgspec.structs.replace(PROFILE, kv_tokens=kv_tokens)))
    time = Time()
    loaded = paced.load(settings(profile, **given), tmp_path, lambda *_: None, time.clock, time.sleep)
    assert (loaded.max_length, loaded.max_running) == expected


@pytest.mark.parametrize(
    ("missing", "imported"),
    [
        (("torch", "numba", "triton"), "legato_engine.runner.paced, legato_engine.transfer.ucx"),
        (("triton",), "legato_engine.runner.runner, legato_engine.backends.cpu.layers"),
    ],
    ids=["paced", "cpu"],
)
def test_a_core_imports_only_packages_of_its_image(missing: tuple[str, ...], imported: str) -> None:
    program = f"""
import sys
sys.modules |= dict.fromkeys({missing})  # importing them fails
import legato_engine.core.__main__, legato_engine.core.assembly, {imported}
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_drafts_are_right_as_often_as_the_profile_says_and_the_text_is_the_same(tmp_path: Path) -> None:
    step = StepTimes(0.01, 1e-5, 0, 1e-5, 0)
    given = Profile("a test", step, kv_tokens=9600, start_seconds=0, acceptance=0.75)
    (tmp_path / "profile.json").write_bytes(msgspec.json.encode(given))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 4800}))
    time, params = Time(), SamplingParams(max_tokens=4000, seed=7)
    speculating = settings(tmp_path / "profile.json", speculation="PromptLookup", speculation_tokens=3)
    loaded = paced.load(speculating, tmp_path, lambda _what, _share: None, time.clock, time.sleep)
    limits = scheduler_limits(speculating, loaded.max_length, loaded.max_running)
    pool = BlockPool(loaded.runner.num_blocks, EventLog("epoch"))
    scheduler, request = Scheduler(limits, pool, "", loaded.drafter), Request("r", 1, [1, 2], 2, params, 1e9)
    scheduler.add(request, time.now)
    while (batch := scheduler.schedule(time.now)) is not None:
        scheduler.process(batch, loaded.runner.step(batch), time.now)
    assert request.tokens[2:] == [token_at(params, 0, position, 300) for position in range(2, 4002)]
    tokens = 1 + 0.75 + 0.75**2 + 0.75**3  # of a step; every 33rd is plain
    assert time.now / 4000 == pytest.approx(0.01 / tokens, rel=0.05)
    cost = scheduler.load().decode_cost
    assert cost is not None
    assert cost.per_step == pytest.approx(0.01 / tokens, rel=0.3)
