"""Hot rows side by side or scattered: what traffic counts of drawn lookups is what was drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evenshard.measure.workload import draw_lookups
from evenshard.tables.generator import GeneratorConfig, generate_tables
from evenshard.tables.locality import LEAST_DIFFERENCE, arrange_hot_rows, contiguous_share
from evenshard.tables.table import Table
from evenshard.tables.traffic.counts import RowRuns

BATCH_SIZE, BATCHES = 512, 8
# Nine of ten distinct rows are read once, one 5 to 8 times.
BINS = (0.9, 0.0, 0.0, 0.1) + (0.0,) * 13
POOL = generate_tables(GeneratorConfig(60, max_rows=300_000, hot_rows_together=0.5), BATCH_SIZE, 3)


def counted(table: Table) -> Table:
    """The table with the runs that its drawn lookups have in traffic."""
    runs = RowRuns(table.num_rows)
    for number in range(BATCHES):
        rows = draw_lookups(table, BATCH_SIZE, seed=1, batch_number=number).indices.numpy()
        if len(rows):
            runs.add(rows, int(rows.max()))
    return replace(table, row_shares=runs.shares(table.num_rows))


def test_by_hand() -> None:
    """5,120 lookups of 3,160 rows (2,844 once, 316 of 7.2 each) lie in the first run, and elsewhere."""
    one = arrange_hot_rows(Table("t", 100_000, 16, 10.0, BINS), BATCH_SIZE, together=True)
    assert one.problem() is None and one.row_shares is not None
    assert 0.35 < one.row_shares[0] < 0.5 and max(one.row_shares[1:]) < 0.025
    assert contiguous_share(one, BATCH_SIZE) == 1.0
    assert contiguous_share(arrange_hot_rows(one, BATCH_SIZE, together=False), BATCH_SIZE) == 0.0
    assert contiguous_share(replace(one, row_shares=None), BATCH_SIZE) is None
    half = tuple((np.array(one.row_shares) + 1 / 32) / 2)
    assert 0.4 < (contiguous_share(replace(one, row_shares=half), BATCH_SIZE) or 0.0) < 0.6


@pytest.mark.parametrize("one", POOL, ids=lambda one: one.name)
def test_traffic_tells_what_was_drawn(one: Table) -> None:
    said = contiguous_share(one, BATCH_SIZE)
    assert one.problem() is None and said is not None
    again = contiguous_share(counted(one), BATCH_SIZE) if one.pooling_factor * BATCH_SIZE >= 100 else said
    assert again == pytest.approx(said, abs=0.3)


def test_both_kinds_are_drawn() -> None:
    shares = [contiguous_share(one, BATCH_SIZE) for one in POOL]
    assert 15 < sum(share == 0 for share in shares) < 45 and 15 < sum((share or 0) > 0.9 for share in shares) < 45


def test_hot_rows_lie_in_a_block_from_the_busiest_run_on_and_are_the_same_in_each_batch() -> None:
    one = Table("t", 100_000, 16, 10.0, BINS, row_shares=(0.2, 0.6, 0.1, 0.1))
    batches = [draw_lookups(one, BATCH_SIZE, 0, number).indices.numpy() for number in range(3)]
    hot = []
    for rows in batches:
        values, counts = np.unique(rows, return_counts=True)
        hot.append(values[counts > 1])
        assert len(rows) == 5120 and rows.min() >= 0 and rows.max() < 100_000
    assert all((one == hot[0]).all() for one in hot)
    in_block = hot[0][(hot[0] >= 25_000) & (hot[0] < 25_000 + len(hot[0]))]
    share = contiguous_share(one, BATCH_SIZE) or 0.0
    assert len(in_block) / len(hot[0]) == pytest.approx(share, abs=0.05) and share > 0.5


@pytest.mark.parametrize("one", POOL[:20], ids=lambda one: one.name)
def test_rows_are_read_as_often_wherever_they_lie(one: Table) -> None:
    """No row of the block is one of the others, too."""
    counts = [
        np.sort(np.unique(draw_lookups(each, BATCH_SIZE, 0, 2).indices.numpy(), return_counts=True)[1])
        for each in (replace(one, row_shares=None), arrange_hot_rows(one, BATCH_SIZE, together=True))
    ]
    assert counts[0].tolist() == counts[1].tolist()


def test_where_it_makes_no_difference_they_are_scattered() -> None:
    """As many runs as rows; and no row that is read twice."""
    small = Table("s", 20, 16, 10.0, row_shares=tuple(np.arange(1, 21) / 210))
    once = Table("o", 10**6, 16, 1.0, (1.0,) + (0.0,) * 16, row_shares=(0.9, 0.1))
    assert contiguous_share(small, BATCH_SIZE) == contiguous_share(once, BATCH_SIZE) == 0.0
    assert LEAST_DIFFERENCE < 1
