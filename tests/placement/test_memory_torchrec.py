"""Our count of memory beside TorchRec's, which its ``EmbeddingStorageEstimator`` says of 200 random plans."""

import pytest

pytest.importorskip("torchrec", reason="TorchRec is not installed", exc_type=ImportError)
from evenshard.placement.parts import FUSED, FUSED_UVM, FUSED_UVM_CACHING
from evenshard.placement.placement import parts_by_table
from evenshard.placement.sharding import SHARDING_TYPES
from support.torchrec_memory import (
    NOTHING,
    OPTIMIZERS,
    PIPELINE_TYPES,
    Line,
    Plan,
    compared,
    random_plan,
    side_by_side,
    way_of,
)

SAME = 0.02
ALIKE = {
    "weights",
    "weights in host memory",
    "cache state",
    "indices",
    "indices, prefetched",
    "outputs",
    "optimizer state",
    "optimizer state in host memory",
}


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    return [random_plan(seed) for seed in range(200)]


@pytest.fixture(scope="module")
def lines(plans: list[Plan]) -> dict[tuple[str, str], Line]:
    return side_by_side(plans)


def test_the_plans_have_everything(plans: list[Plan]) -> None:
    tasks = [plan.task for plan in plans]
    tables = [table for task in tasks for table in task.tables]
    assert {task.pipeline for task in tasks} == set(PIPELINE_TYPES)
    assert {task.optimizer for task in tasks} == set(OPTIMIZERS)
    assert {plan.at_peak for plan in plans} == {False, True}
    assert {table.dtype for table in tables} == {"fp32", "fp16", "bf16"}
    assert {table.pooling for table in tables} == {"sum", "mean", "none"}
    assert {table.num_features for table in tables} == {1, 2, 3}
    assert {table.is_weighted for table in tables} == {False, True}
    stored = {(part.storage.kernel, part.storage.load_factor) for plan in plans for part in plan.parts}
    assert stored == {(FUSED, 1.0), (FUSED_UVM, 1.0), *((FUSED_UVM_CACHING, share) for share in (0.05, 0.2, 0.5, 1.0))}
    by_table = [(plan, parts_by_table(plan.task, plan.parts)) for plan in plans]
    ways = {way_of(plan, table, parts[table.name]) for plan, parts in by_table for table in plan.task.tables}
    assert ways == set(SHARDING_TYPES)


@pytest.mark.slow
def test_what_both_count_is_equal(lines: dict[tuple[str, str], Line]) -> None:
    alike = {component: line for (component, reason), line in lines.items() if not reason}
    assert alike.keys() == ALIKE
    assert {component: line.largest for component, line in alike.items() if line.largest > SAME} == {}
    assert min(len(line.plans) for line in alike.values()) >= 20


def test_what_differs_has_a_reason_and_does_differ(lines: dict[tuple[str, str], Line]) -> None:
    others = {key: line for key, line in lines.items() if key[1]}
    assert {component for component, reason in others if reason != NOTHING} == {
        "outputs",
        "optimizer state",
        "optimizer state in host memory",
    }
    for (_, reason), line in others.items():
        assert line.largest > SAME
        assert (line.theirs == 0) if reason == NOTHING else (line.theirs != line.ours)


def test_components_add_up_to_what_torchrec_says() -> None:
    """By hand from its formulas, so that telling them apart invents nothing: all of theirs is one of its numbers."""
    from support.torchrec_memory import Estimator

    plan = random_plan(3)
    said = Estimator(plan).bytes_of_parts(at_peak=plan.at_peak)
    found = sum(one.theirs for one in compared(plan))
    assert found == sum(device + host for device, host in said)
