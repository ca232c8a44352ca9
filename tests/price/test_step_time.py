"""Steps of devices whose phases are round numbers, by hand."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from evenshard.placement.memory import PIPELINES
from evenshard.price.costs import DeviceCost, PlacementCost
from evenshard.price.step_time import LARGEST_SUM, Phases, device_ms, hidden_ms, kernels_ms, round_for_sorting, step_ms

# Two devices: indices, forward, forward exchange, backward exchange, backward.
ONE, OTHER = (1.0, 4.0, 2.0, 3.0, 10.0), (2.0, 7.0, 1.0, 1.0, 8.0)
TWO = Phases(*np.array([ONE, OTHER]).T)
# By pipeline: the step, and what each device does in it.
STEPS = {
    # (2 + 7) indices and forward, 2 forward exchange, (3 + 10) backward.
    "none": (24.0, [20.0, 19.0]),
    "base": (24.0, [20.0, 19.0]),
    # 2 forward exchange, then 3 + 10 + 4; indices run beside 14 and 15 ms of kernels.
    "sparse_dist": (19.0, [19.0, 17.0]),
    "prefetch": (19.0, [19.0, 17.0]),
    "": (19.0, [19.0, 17.0]),
    LARGEST_SUM: (20.0, [20.0, 19.0]),
}


@pytest.mark.parametrize("pipeline", STEPS)
def test_a_step_is_the_sum_of_the_slowest_of_each_window(pipeline: str) -> None:
    step, own = STEPS[pipeline]
    assert float(step_ms(TWO, pipeline)) == step and device_ms(TWO, pipeline).tolist() == own


def test_every_pipeline_has_a_step() -> None:
    assert set(STEPS) == {*PIPELINES, "", LARGEST_SUM}


def test_indices_that_do_not_fit_beside_kernels_count_with_what_is_longer() -> None:
    """30 ms of indices beside 14 ms of kernels: 16 of them are exposed."""
    slow = TWO._replace(input_dist=np.array([30.0, 2.0]))
    assert hidden_ms(slow, "sparse_dist").tolist() == [14.0, 2.0] and hidden_ms(slow, "base").tolist() == [0.0, 0.0]
    assert float(step_ms(slow, "sparse_dist")) == 2 + 3 + 30
    assert float(step_ms(slow, "base")) == (30 + 4) + 2 + 13


def test_kernels_are_those_of_the_slowest_device_of_each_window() -> None:
    assert kernels_ms(TWO, "base") == 7 + 0 + 10
    assert kernels_ms(TWO, "sparse_dist") == 14 and kernels_ms(TWO, LARGEST_SUM) == 14


@pytest.mark.parametrize("pipeline", STEPS)
def test_alike_devices_never_wait(pipeline: str) -> None:
    alike = Phases(*np.array([ONE, ONE, ONE]).T)
    assert float(step_ms(alike, pipeline)) == pytest.approx(device_ms(alike, pipeline)[0])


def test_many_steps_at_once_are_those_of_one_after_the_other() -> None:
    """At least what a device does itself, at most the sum of the slowest phases; more of any phase is no faster."""
    rng = np.random.default_rng(0)
    many = Phases(*rng.random((5, 40, 6)))
    for pipeline in STEPS:
        steps_N = step_ms(many, pipeline)
        assert steps_N.tolist() == [float(step_ms(Phases(*(one[at] for one in many)), pipeline)) for at in range(40)]
        assert (steps_N <= sum(one.max(axis=1) for one in many) + 1e-12).all()
        assert (steps_N >= device_ms(many, pipeline).max(axis=1) - 1e-12).all()
        longer = [step_ms(many._replace(backward=many.backward * factor), pipeline) for factor in (0.5, 1.0, 2.0)]
        assert all((one <= other).all() for one, other in pairwise(longer))


def test_a_measured_placement_waits_too_and_its_recorded_cost_does_not() -> None:
    """``max_device_ms`` stays what files say it is."""
    devices = tuple(
        DeviceCost(fwd, out, back, bwd, input_dist_ms=inputs) for inputs, fwd, out, back, bwd in (ONE, OTHER)
    )
    cost = PlacementCost(devices, "modelled")
    assert cost.max_device_ms == cost.step_ms(LARGEST_SUM) == 20.0
    assert cost.step_ms("base") == 24.0 and cost.step_ms("sparse_dist") == 19.0
    assert cost.device_ms("sparse_dist") == (19.0, 17.0)
    lost = PlacementCost((devices[0], DeviceCost.out_of_memory()), "modelled")
    assert lost.step_ms("base") == lost.max_device_ms == float("inf")


def test_a_shard_that_was_timed_as_one_takes_its_time() -> None:
    alone = PlacementCost((DeviceCost.of_total(5.0),), "modelled")
    assert [alone.step_ms(pipeline) for pipeline in STEPS] == [5.0] * len(STEPS)


@pytest.mark.parametrize("nudges", list(product((-np.inf, np.inf), repeat=3)))
def test_last_digits_decide_nothing(nudges: tuple[float, ...]) -> None:
    """Equal times keep their order."""
    times = np.array([3.1, *(np.nextafter(2.7, end) for end in nudges), np.inf])
    named = sorted(enumerate(times), key=lambda one: round_for_sorting(float(one[1])))
    assert [number for number, _ in named] == [1, 2, 3, 0, 4]
