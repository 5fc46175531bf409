"""A batch as flat arrays."""

from legato_engine.runner import inputs
from legato_engine.scheduler.batch import Row


def test_rows_become_one_sequence_of_tokens_with_the_places_of_their_kv(greedy_draw):
    rows = [
        Row([50, 51, 52], 3, [7, 2, 9], (greedy_draw,)),  # its table is longer than it needs
        Row([60], 0, [4]),
        Row([70], 8, [5, 1, 3], (greedy_draw,)),
    ]

    step = inputs.build(rows, 4)

    assert step.tokens.tolist() == [50, 51, 52, 60, 70]
    assert step.positions.tolist() == [3, 4, 5, 0, 8]
    assert step.slots.tolist() == [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 4 * 4, 3 * 4]
    assert step.starts.tolist() == [0, 3, 4, 5]
    assert step.lengths.tolist() == [6, 1, 9]
    assert step.tables.tolist() == [[7, 2, 7], [4, 4, 4], [5, 1, 3]]
    assert step.sampled.tolist() == [2, 4]
