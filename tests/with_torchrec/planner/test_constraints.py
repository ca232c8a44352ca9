"""TorchRec's constraints in the plan, in the options and in what the search counts."""

from __future__ import annotations

from typing import Any

import pytest
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.distributed.types import BoundsCheckMode, CacheAlgorithm, CacheParams, CacheStatistics, KeyValueParams
from torchrec.modules.embedding_configs import DataType

from evenshard.base.errors import BadConfig
from evenshard.tables.table import LOAD_FACTORS
from support.torchrec_builders import MB, Sparse, bags, entries, planner, two_gpus


def test_what_constraints_say_to_kernels_is_in_the_plan() -> None:
    constraints = {
        "table_0": ParameterConstraints(enforce_hbm=True, cache_params=CacheParams(algorithm=CacheAlgorithm.LFU)),
        "table_1": ParameterConstraints(enforce_hbm=False, stochastic_rounding=True),
        "table_2": ParameterConstraints(bounds_check_mode=BoundsCheckMode.FATAL, output_dtype=DataType.FP16),
    }
    one = planner(constraints=constraints)
    found = entries(one.plan(Sparse(bags(4))))
    said = [
        (of.enforce_hbm, of.stochastic_rounding, of.bounds_check_mode, of.output_dtype, of.cache_params)
        for of in (found[f"table_{at}"] for at in range(4))
    ]
    assert said == [
        (True, None, None, None, constraints["table_0"].cache_params),
        (False, True, None, None, None),
        (None, None, BoundsCheckMode.FATAL, DataType.FP16, None),
        (None,) * 5,
    ]
    (note,) = one.notes
    assert note.startswith("As in TorchRec, the plan has the constraints' cache_params for tables without a cache")
    assert "(table_0)" in note
    for option in one._best_plan or ():
        assert option.enforce_hbm == found[option.name].enforce_hbm


def test_the_cache_of_a_table_has_the_constraints_algorithm_and_precision() -> None:
    """Its size is the search's."""
    cache = CacheParams(algorithm=CacheAlgorithm.LFU, load_factor=0.1, precision=DataType.FP16)
    constraints = {"table_0": ParameterConstraints(compute_kernels=["fused_uvm_caching"], cache_params=cache)}
    one = planner(two_gpus(100, ddr_cap_bytes=100 * MB), constraints=constraints, host_memory_gb=None)
    found = entries(one.plan(Sparse(bags(2))))["table_0"]
    assert found.compute_kernel == "fused_uvm_caching"
    assert (found.cache_params.algorithm, found.cache_params.precision) == (CacheAlgorithm.LFU, DataType.FP16)
    assert one.notes == ()


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"sharding_types": ["table_wise", "data_parallel"], "compute_kernels": ["dense"]}, {"data_parallel"}),
        ({"sharding_types": ["column_wise"], "min_partition": 32}, {"column_wise"}),
    ],
)
def test_types_kernels_and_widths_are_kept(constraint: dict[str, Any], expected: set[str]) -> None:
    constraints = {f"table_{at}": ParameterConstraints(**constraint) for at in range(2)}
    found = entries(planner(two_gpus(100), constraints=constraints).plan(Sparse(bags(2, rows=5000))))
    assert {entry.sharding_type for entry in found.values()} == expected
    for entry in found.values():
        least = constraint.get("min_partition", 4)
        assert entry.sharding_spec is None or all(one.shard_sizes[1] >= least for one in entry.sharding_spec.shards)


def test_poolings_and_batches_of_a_feature_are_bags_with_their_lookups() -> None:
    """3 poolings of 7.5 lookups; a batch of 256 samples where others have 512; both together, 3 x 1,024 / 512."""
    three, half, both = {"num_poolings": [3.0]}, {"batch_sizes": [256]}, {"num_poolings": [3.0], "batch_sizes": [1024]}
    constraints = {
        f"table_{at}": ParameterConstraints(pooling_factors=[7.5], **more)
        for at, more in enumerate((three, half, both))
    }
    one = planner(two_gpus(100), constraints=constraints)
    one.plan(Sparse(bags(4)))
    assert one.answer is not None and one.notes == ()
    tables = one.answer.request.tables
    assert [table.pooling_factor for table in tables] == [22.5, 3.75, 45.0, 1.0]
    assert [table.outputs_per_sample for table in tables] == [3.0, 1.0, 6.0, 1.0]
    assert [table.feature_lookups for table in tables] == [(7.5,) * 3, (3.75,), (7.5,) * 6, (1.0,)]
    assert [option.input_lengths for option in one._best_plan or ()] == [[7.5], [7.5], [7.5], [1.0]], "TorchRec's"


def test_a_cache_misses_what_statistics_of_the_constraints_say() -> None:
    class Straight(CacheStatistics):  # type: ignore[misc]
        """Misses what the cache does not hold, and more than all without one."""

        expected_lookups = cacheability = 0.5

        def expected_miss_rate(self, clf: float) -> float:
            return 1.5 - clf

    constraints = {"table_0": ParameterConstraints(cache_params=CacheParams(stats=Straight()))}
    one = planner(two_gpus(100, ddr_cap_bytes=100 * MB), constraints=constraints, host_memory_gb=None)
    one.plan(Sparse(bags(2)))
    assert one.answer is not None
    counted, assumed = (table.miss_ratios for table in one.answer.request.tables)
    assert counted == (*(min(1.0, 1.5 - factor) for factor in LOAD_FACTORS[:-1]), 0.0) and assumed is None
    assert one.notes == ()


def test_a_table_on_ssds_has_the_constraints_directory_and_the_cache_of_the_search() -> None:
    given = KeyValueParams(ssd_storage_directory="/ssd@local_rank", l2_cache_size=2, max_l1_cache_size=7)
    constraints = {"table_0": ParameterConstraints(compute_kernels=["key_value"], key_value_params=given)}
    one = planner(two_gpus(100, ssd_cap_bytes=100 * MB), constraints=constraints, ssd_gb=1)
    found = entries(one.plan(Sparse(bags(2))))["table_0"].key_value_params
    assert (found.ssd_storage_directory, found.l2_cache_size, found.max_l1_cache_size) == ("/ssd@local_rank", 2, 1)
    assert one.notes == ()


def test_tables_of_another_group_of_devices_are_refused_or_left_to_torchrec() -> None:
    constraints = {"table_0": ParameterConstraints(device_group="cpu")}
    model = Sparse(bags(2))
    with pytest.raises(PlannerError, match="device_group is 'cpu', but the devices are cuda") as caught:
        planner(constraints=constraints).plan(model)
    wrong = PlannerErrorType.INPUT_VALIDATION
    assert caught.value.error_type is wrong and isinstance(caught.value.__cause__, BadConfig)
    plan = planner(constraints=constraints, fallback=True).plan(model)
    assert list(entries(plan)) == ["table_1"], "TorchRec plans each group by itself"
