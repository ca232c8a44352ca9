"""Several bags of a feature per sample: repeated features, and the constraints that they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenshard.tables.table import SEQUENCE, Table
from evenshard.torchrec.model.tables import bags_of, with_bags

CLICKS = Table("clicks", 100, 8, 4.0)
BOTH = Table("items", 100, 8, 8.0, feature_names=("seen", "bought"), feature_pooling_factors=(6.0, 2.0))


def test_a_whole_number_of_bags_is_whole_many_features() -> None:
    found = with_bags(CLICKS, [3.0])
    assert found.feature_names == ("clicks", "clicks#2", "clicks#3") and found.problem() is None
    assert (found.pooling_factor, found.outputs_per_sample) == (12.0, 3.0)
    assert with_bags(BOTH, [1.0, 2.0]).feature_pooling_factors == (6.0, 2.0, 2.0)
    assert with_bags(CLICKS, [1.0]) == CLICKS


def test_part_of_a_bag_is_a_bag_with_its_lookups() -> None:
    found = with_bags(CLICKS, [2.5])
    assert found.outputs_per_sample == 3 and found.pooling_factor == pytest.approx(10.0)
    assert with_bags(CLICKS, [0.25]) == replace(CLICKS, pooling_factor=1.0)


def test_a_sequence_has_an_output_for_each_lookup() -> None:
    found = with_bags(replace(CLICKS, pooling=SEQUENCE), [2.5])
    assert found.outputs_per_sample == found.pooling_factor == 10.0 and found.num_features == 1


@pytest.mark.parametrize(("table", "bags"), [(CLICKS, (3.0,)), (BOTH, (1.0, 4.0)), (BOTH, (1.0, 1.0))])
def test_bags_are_found_again(table: Table, bags: tuple[float, ...]) -> None:
    assert bags_of(with_bags(table, bags)) == (table.feature_lookups, bags)


def test_a_feature_that_is_called_so_stays_one() -> None:
    own = replace(BOTH, feature_names=("a#2", "b"))
    assert bags_of(own) == ((6.0, 2.0), (1.0, 1.0))
