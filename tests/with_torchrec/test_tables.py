"""Tables of TorchRec models, read from their configurations, and several bags of a feature per sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)

from evenshard.base.errors import BadConfig
from evenshard.tables.assumptions import Assumption
from evenshard.tables.sources import complete_tables
from evenshard.tables.table import SEQUENCE, Table
from evenshard.torchrec import EvenshardPlanner, tables_of
from evenshard.torchrec.model.modules import find_collections, find_other_modules
from evenshard.torchrec.model.tables import bags_of, table_set_of, with_bags
from support.torchrec_builders import GREEDY, ITEM, META, NAMES, USER, Model
from support.traffic_builders import write_parquet

SEQUENCES = [
    EmbeddingConfig(name="songs", feature_names=["history", "target"], num_embeddings=90, embedding_dim=4),
    EmbeddingConfig(name="users", feature_names=["users"], num_embeddings=9, embedding_dim=4, data_type=DataType.FP16),
]


def test_tables_of_a_model_by_hand() -> None:
    """Feature by feature, table as a whole, and what is unknown."""
    tables = tables_of(Model(META), {"clicks": 12.5, "item_before": 20.0, "user.ebc.id": 0.5}, default_pooling_factor=2)
    user, item = {"module": "user.ebc"}, {"module": "item"}
    assert tables == (
        Table("user.ebc.id", 50, 8, 0.5, feature_names=("user_id",), **user),
        Table("clicks", 40, 16, 12.5, **user),
        Table("wide", 30, 24, 2.0, **user),
        Table(
            "item.id",
            60,
            8,
            22.0,
            feature_names=("item_id", "item_before"),
            feature_pooling_factors=(2.0, 20.0),
            **item,
        ),
        Table("tags", 20, 4, 2.0, pooling="mean", **item),
    )
    assert [one.pooling_factor for one in tables_of(Model(META))] == [1, 1, 1, 2, 1]


def test_lookups_of_a_table_as_a_whole_are_those_of_its_features_evenly() -> None:
    found = table_set_of(ITEM, {"id": 6.0, "tags": 1.0})
    assert found.tables[0].feature_pooling_factors == (3.0, 3.0)
    text = "pooling_factor, split evenly over 2 features"
    assert Assumption("id", "feature_pooling_factors", text) in found.assumptions


def test_sequences_have_no_pooling() -> None:
    songs, users = tables_of(EmbeddingCollection(tables=SEQUENCES, device=META), {"history": 500.0})
    assert (songs.pooling, songs.pooling_factor, songs.feature_pooling_factors) == ("none", 501.0, (500.0, 1.0))
    assert (songs.feature_names, songs.outputs_per_sample) == (("history", "target"), 501.0)
    assert (users.pooling, users.weight_bits, users.feature_names) == ("none", 16, ())
    assert tables_of(SEQUENCES, {"history": 500.0}) == (songs, users)


def test_sequences_are_deduplicated_where_their_sharder_does_it() -> None:
    model = Model(META)
    model.sequence = EmbeddingCollection(tables=SEQUENCES, device=META)

    def deduplicated(**sharders: Any) -> set[str]:
        return {one.name for one in tables_of(model, **sharders) if one.is_deduplicated}

    assert deduplicated() == deduplicated(sharders=[EmbeddingCollectionSharder()]) == set()
    own = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder(use_index_dedup=True)]
    assert deduplicated(sharders=own) == {"songs", "users"}


def test_weighted_collections_have_weighted_tables() -> None:
    weighted = EmbeddingBagCollection(tables=USER, is_weighted=True, device=META)
    assert {one.is_weighted for one in tables_of(weighted)} == {True}
    assert {one.is_weighted for one in tables_of(Model(META))} == {False}


def test_data_types_of_weights() -> None:
    types = {DataType.FP32: (32, "fp32"), DataType.BF16: (16, "bf16"), DataType.NFP8: (8, "fp8")}
    types |= {DataType.UINT8: (8, "int8"), DataType.INT4: (4, "int4")}
    for data_type, expected in types.items():
        (found,) = tables_of([replace(USER[0], data_type=data_type)])
        assert (found.weight_bits, found.dtype) == expected


def test_tables_of_lists_and_of_one_collection() -> None:
    collection = EmbeddingBagCollection(tables=USER, device=META)
    by_list = tables_of(USER)
    assert [one.name for one in by_list] == ["id", "clicks", "wide"]
    assert tables_of(collection) == tables_of([collection]) == by_list
    assert tables_of({"a.b": collection}) == tuple(replace(one, module="a.b") for one in by_list)
    unnamed = replace(USER[0], feature_names=[])
    assert [(one.pooling_factor, one.feature_names) for one in tables_of([unnamed], {"id": 3.0})] == [(3.0, ())]


@pytest.mark.parametrize(
    ("collections", "pooling_factors", "message"),
    [
        (nn.Linear(1, 1), {}, "no EmbeddingBagCollection or EmbeddingCollection with tables"),
        (USER, {"click": 1.0}, "'click', which is neither a table nor a feature"),
        (USER, {"clicks": -1.0}, "table 'clicks': pooling_factor is -1.0"),
        ([*USER, *ITEM], {}, "two tables are called 'id'. Give the whole model"),
        (
            [replace(USER[0], data_type=DataType.INT2)],
            {},
            "table 'id': data_type is INT2. Choose from fp32, fp16",
        ),
        ([replace(USER[0], pooling=PoolingType.NONE, feature_names=["a", "a"])], {}, "table 'id': feature_names has"),
        ([replace(USER[0], name="clicks"), replace(USER[1], name="x")], {"clicks": 1.0}, "numbers for table 'x' too"),
    ],
)
def test_tables_that_make_no_sense(collections: Any, pooling_factors: dict[str, float], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        tables_of(collections, pooling_factors)


def test_lookups_that_are_not_given_are_assumed() -> None:
    """A table's name stands for all its features; one feature of two leaves the other open."""

    def assumed(*names: str) -> list[str]:
        found = table_set_of(Model(META), dict.fromkeys(names, 2.0)).assumptions
        return [one.table for one in found if one.column == "pooling_factor"]

    assert assumed() == list(NAMES)
    assert assumed("clicks", "item_id") == ["user.ebc.id", "wide", "item.id", "tags"]
    assert assumed("item.id", "user_id", "tags") == ["clicks", "wide"]
    assert assumed("item_id", "item_before", "wide") == ["user.ebc.id", "clicks", "tags"]
    assert table_set_of(USER, default_pooling_factor=1.5).assumptions[0].text == "1.5 for each feature, the default"
    named = table_set_of(USER, {"wide": 1.0}).assumptions[0].text
    assert named == "1 for each feature that is not named, the default"


# Modules -------------------------------------------------------------------------------------------------------------


def test_a_collection_at_two_paths_is_placed_once() -> None:
    model, deeper = nn.Module(), nn.Module()
    model.first = model.second = deeper.third = EmbeddingBagCollection(tables=USER, device=META)
    model.deeper = deeper
    assert [one.name for one in tables_of(model)] == ["id", "clicks", "wide"]
    assert list(find_collections(model)) == ["first"]


def positional() -> FeatureProcessedEmbeddingBagCollection:
    """A collection with a feature processor."""
    bags = EmbeddingBagCollection(tables=[USER[1]], is_weighted=True, device=META)
    return FeatureProcessedEmbeddingBagCollection(bags, PositionWeightedModuleCollection({"clicks": 10}, device=META))


def collisions() -> ManagedCollisionEmbeddingCollection:
    """A collection with managed collisions."""
    config = replace(SEQUENCES[1], data_type=DataType.FP32)
    managed = MCHManagedCollisionModule(
        zch_size=config.num_embeddings,
        device=META,
        eviction_interval=1,
        eviction_policy=DistanceLFU_EvictionPolicy(),
    )
    return ManagedCollisionEmbeddingCollection(
        EmbeddingCollection(tables=[config], device=META),
        ManagedCollisionCollection({config.name: managed}, [config]),
    )


def test_modules_of_other_kinds_are_left_to_torchrec(tmp_path: Path) -> None:
    model = Model(META)
    model.sequence = EmbeddingCollection(tables=SEQUENCES, device=META)
    model.positional, model.collisions = positional(), collisions()
    virtual = {"num_embeddings": 2**40, "embedding_dim": 4, "use_virtual_table": True, "total_num_buckets": 4}
    tables = [EmbeddingConfig(name="v", feature_names=["v"], **virtual)]
    model.virtual = EmbeddingCollection(tables=tables, device=META)
    assert list(find_collections(model)) == ["user.ebc", "item", "sequence"]
    others = {path: type(module).__name__ for path, module in find_other_modules(model).items()}
    assert others == {
        "positional": "FeatureProcessedEmbeddingBagCollection",
        "collisions": "ManagedCollisionEmbeddingCollection",
        "virtual": "EmbeddingCollection",
    }
    assert {one.module for one in tables_of(model)} == {"user.ebc", "item", "sequence"}
    known = table_set_of(model)
    left = {one.table: one.text for one in known.assumptions if one.column == "module"}
    assert left == {
        "positional.clicks": "FeatureProcessedEmbeddingBagCollection, which is left to TorchRec",
        "collisions.users": "ManagedCollisionEmbeddingCollection, which is left to TorchRec",
        "virtual.v": "EmbeddingCollection, which is left to TorchRec",
    }
    counted = complete_tables(known, 1, write_parquet(tmp_path, {"wide": [[1]]}))
    assert [one for one in counted.assumptions if one.column == "module"] == list(known.assumptions[-3:])


def test_the_sharders_say_which_modules_have_tables() -> None:
    model = Model(META)
    model.sequence, model.positional = EmbeddingCollection(tables=SEQUENCES, device=META), positional()
    only_bags = [EmbeddingBagCollectionSharder()]
    # Without a sharder of its own, TorchRec shards the collection in it.
    assert list(find_collections(model, only_bags)) == ["user.ebc", "item", "positional._embedding_bag_collection"]
    assert find_other_modules(model, only_bags) == {}
    planner = EvenshardPlanner(sharder=GREEDY, world_size=2)
    assert set(planner.plan(Model(META), only_bags).plan) == {"user.ebc", "item"}


CLICKS = Table("clicks", 100, 8, 4.0)
BOTH = Table("items", 100, 8, 8.0, feature_names=("seen", "bought"), feature_pooling_factors=(6.0, 2.0))


def test_bags_are_features_and_part_of_one_is_a_bag_with_its_lookups() -> None:
    found = with_bags(CLICKS, [3.0])
    assert found.feature_names == ("clicks", "clicks#2", "clicks#3") and found.problem() is None
    assert (found.pooling_factor, found.outputs_per_sample) == (12.0, 3.0)
    assert with_bags(BOTH, [1.0, 2.0]).feature_pooling_factors == (6.0, 2.0, 2.0)
    assert with_bags(CLICKS, [1.0]) == CLICKS
    in_part = with_bags(CLICKS, [2.5])
    assert in_part.outputs_per_sample == 3 and in_part.pooling_factor == pytest.approx(10.0)
    assert with_bags(CLICKS, [0.25]) == replace(CLICKS, pooling_factor=1.0)
    sequence = with_bags(replace(CLICKS, pooling=SEQUENCE), [2.5])  # an output for each lookup
    assert sequence.outputs_per_sample == sequence.pooling_factor == 10.0 and sequence.num_features == 1


@pytest.mark.parametrize(("table", "bags"), [(CLICKS, (3.0,)), (BOTH, (1.0, 4.0)), (BOTH, (1.0, 1.0))])
def test_bags_are_found_again(table: Table, bags: tuple[float, ...]) -> None:
    assert bags_of(with_bags(table, bags)) == (table.feature_lookups, bags)


def test_a_feature_that_is_called_so_stays_one() -> None:
    own = replace(BOTH, feature_names=("a#2", "b"))
    assert bags_of(own) == ((6.0, 2.0), (1.0, 1.0))
