"""Padded sizes of steps. A captured step serves every step that its size covers."""

from dataclasses import replace

from legato_engine.backends.cuda.workspace import Room, Size
from legato_engine.layers.inputs import StepInputs

SHORT = 8  # tokens: rows of at most this length use attention's kernels for decoding
_MOST_EARLY = 64  # decoding rows: larger steps are captured when they first occur
_LEAST_EARLY = 64  # tokens of the smallest step with prompts that is captured early


def exact(inputs: StepInputs) -> Size:
    """The size of a step without padding."""
    longest = int((inputs.starts[1:] - inputs.starts[:-1]).max())
    return Size(len(inputs.tokens), len(inputs.lengths), len(inputs.sampled), longest > SHORT, bool(inputs.adapted))


def padded(size: Size, room: Room) -> Size:
    """The size for which a step is captured, within `room`: of steps with many tokens, padding is at most an eighth."""
    if size.tokens == size.rows:
        rows = next(each for each in decoding_rows(room.rows) if each >= size.rows)
        return Size(rows, rows, rows, False, size.adapted)
    tokens, rows = min(_padded_tokens(size.tokens), room.tokens), min(_padded_rows(size.rows), room.rows)
    samples = min(rows, tokens) if size.samples <= rows else min(tokens, room.largest.samples)
    return Size(tokens, rows, samples if size.samples else 0, size.prompts, size.adapted)


def early(room: Room, adapters: bool = False) -> tuple[Size, ...]:
    """The sizes that are captured before a worker serves, the largest first: with prompts, so that any step can be
    padded to one with at most twice its tokens, also with `adapters`, and decoding rows."""
    ladder = [room.tokens]
    while ladder[-1] > _LEAST_EARLY:
        ladder.append(max(_LEAST_EARLY, _padded_tokens(-(-ladder[-1] // 2))))
    prompts = [
        Size(tokens, min(_padded_rows(tokens), room.rows), min(tokens, room.largest.samples), True) for tokens in ladder
    ]
    decoding = [Size(rows, rows, rows, False) for rows in decoding_rows(room.rows) if rows <= _MOST_EARLY]
    adapted = [replace(size, adapted=True) for size in prompts] if adapters else []
    return (*adapted, *prompts, *reversed(decoding))


def near(size: Size, other: Size) -> bool:
    """True if a step of the other size may be padded to `size` until there is a better one."""
    return size.covers(other) and size.adapted == other.adapted and size.tokens <= max(2 * other.tokens, _LEAST_EARLY)


def decoding_rows(most: int) -> tuple[int, ...]:
    """Returns 1, 2, 4, then steps of 8, from 64 on of 16, from 256 on of 32, and from 512 on of 64, up to `most`.

    The steps are small, so that padding adds few rows."""
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 512, 32), *range(512, most, 64)]
    return (*[size for size in steps if size < most], most)


def _padded_tokens(tokens: int) -> int:
    """The next multiple of 16, for which kernels are compiled; from 128 on of 32, from 512 on of 64, from 2048 on of
    128."""
    step = next((step for step, most in ((16, 128), (32, 512), (64, 2048)) if tokens <= most), 128)
    return -(-tokens // step) * step


def _padded_rows(rows: int) -> int:
    """8, 64, 128, 256, …: in a step with prompts, rows without tokens only add programs that return immediately."""
    return 8 if rows <= 8 else max(64, 1 << (rows - 1).bit_length())
