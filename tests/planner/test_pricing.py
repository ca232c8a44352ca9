"""What a model predicts of parts is filled into answers in one way, with intervals as wide as what is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import evenshard
from evenshard.base.errors import BadConfig
from evenshard.placement.nodes import DeviceGroup, Nodes
from evenshard.placement.parts import FUSED_UVM, Storage, whole_part
from evenshard.placement.sharding import TABLE_WISE
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.place import PlaceConfig, place_request
from evenshard.planner.pricing import (
    compute_hot_rows_factors,
    compute_interval_factors,
    device_error,
    link_error,
    links_of_request,
    model_of,
    note_widening,
    part_costs,
    price_parts,
    reprice_answer,
)
from evenshard.planner.request import PlacementRequest
from evenshard.price.evidence import EXTRAPOLATED_PERCENT, DeviceError
from evenshard.price.hardware import profile_names, profile_path
from evenshard.price.link import link
from evenshard.price.step import PredictedDevice
from evenshard.report.step_facts import device_error_text
from evenshard.sharders.model import DeviceModel
from evenshard.sharders.models import PlacementModel
from evenshard.sharders.training_domain import MOST_FACTOR, TrainingDomain
from evenshard.tables.locality import arrange_hot_rows
from evenshard.tables.table import Table
from support.builders import BATCH_SIZE
from support.convex_builders import random_model
from support.effort import LITTLE
from support.explain_builders import additive
from support.learned import learned_model
from support.request_builders import request, untrained

NEAR = Table("near", 1000, 64, 2.0)
WIDE = replace(NEAR, name="wide", embedding_dim=2048)
FAR = replace(WIDE, name="far", pooling_factor=3000.0)


def test_an_answer_with_its_own_parts_is_priced_as_it_was_placed() -> None:
    """Parts in another order are the same, and the interval is as wide as beyond the training data it has to be."""
    model = learned_model()
    answer = evenshard.place((NEAR, FAR), 2, 1000.0, model=model, batch_size=4096, effort="quick")
    costs = part_costs(answer.request, model)
    own = costs.predict(answer.parts[::-1])
    now, note = price_parts(answer.request, model, costs, own)
    assert note is not None and note in answer.notes
    assert own.low_ms > 10 * now.model_low_ms and 10 * own.high_ms < now.model_high_ms
    assert now.model_low_ms == pytest.approx(answer.model_low_ms) and now.predicted_ms == answer.predicted_ms
    again = reprice_answer(replace(answer, predicted_ms=0, alone_ms=answer.adds_ms, model_high_ms=0), own.parts, model)
    assert again.predicted_ms == answer.predicted_ms and again.alone_ms == pytest.approx(answer.alone_ms)
    assert again.model_high_ms == pytest.approx(answer.model_high_ms) and again.parts == answer.parts


# Devices and links ----------------------------------------------------------------------------------------------------


def test_every_profile_has_times() -> None:
    for profile in profile_names():
        asked = request(8, 64, hardware=f"simulated:{profile}")
        costs = part_costs(asked, model_of(None, asked.hardware))
        found = costs.predict([whole_part(one, (at,)) for at, one in enumerate(asked.tables)])
        assert 0 < found.predicted_ms < 10, profile


def test_devices_of_other_hardware_have_their_own_times() -> None:
    kinds = (DeviceGroup("simulated:h100", 1), DeviceGroup("simulated:v100", 1))
    asked = request(64, 64, rows=10**6, batch_size=65_536, machine=Nodes(2, 2, groups=kinds), hardware="simulated:h100")
    costs = part_costs(asked, DeviceModel("simulated:h100"))
    fast, slow = costs.predict([whole_part(one, (at,)) for at, one in enumerate(asked.tables)]).devices
    assert slow.predicted_fwd_compute_ms > 1.5 * fast.predicted_fwd_compute_ms


def test_links_are_those_that_are_named_or_the_models() -> None:
    two_nodes = Nodes(4, 2, intra="50gb_s", inter="ethernet_25g")
    confirmed = replace(two_nodes, intra="pcie3_host", inter="50gb_s")
    caps = (2**30,) * 4
    found = links_of_request(request(8, caps=caps, machine=two_nodes), untrained())
    assert (found.intra, found.inter) == (link("50gb_s"), link("ethernet_25g"))
    assert links_of_request(request(8), DeviceModel("simulated:h100")).intra == link("nvlink_h100")
    none = replace(additive(), trained_on=replace(untrained().trained_on, link=""))
    with pytest.raises(BadConfig, match=r"between 2 devices would take no time\. Give their link"):
        links_of_request(request(8), none)
    assert link("pcie3_host").error.percent < link("50gb_s").error.percent
    assert link_error(request(8, caps=caps, machine=confirmed), untrained()) == link("50gb_s").error
    assert link_error(request(8, caps=caps[:1], machine=Nodes(1, 1, intra="50gb_s")), untrained()) is None


def test_the_interval_has_the_errors_of_the_device_and_of_the_link() -> None:
    device = link("pcie3_host").error
    learned = replace(untrained(), trained_on=replace(untrained().trained_on, device_error=device))
    wide, narrow = (
        place_request(request(8, 16, machine=Nodes(2, 2, intra=intra)), learned, PlaceConfig(LITTLE))
        for intra in ("50gb_s", "pcie3_host")
    )
    assert wide.device_error == narrow.device_error == device and wide.link_error == link("50gb_s").error
    assert narrow.low_ms < narrow.model_low_ms < narrow.model_high_ms < narrow.high_ms
    assert narrow.high_ms / narrow.predicted_ms < wide.high_ms / wide.predicted_ms


def test_an_answer_states_the_error_for_its_optimizers_and_the_lookups_of_its_slowest_device(tmp_path: Path) -> None:
    content = yaml.safe_load(profile_path("h100").read_text())
    row = {"points": "calls", "source": "a test", "fitted": 0, "held_out": 20, "median_error_percent": 1.0}
    least_most = {"lookups": [900, 70_000]}
    content["evidence"] = [
        {**row, "p90_error_percent": 10.0, "optimizers": ["sgd"], **least_most},
        {**row, "p90_error_percent": 20.0, "optimizers": ["adam"], **least_most},
    ]
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(content))
    model, other = DeviceModel(f"simulated:{path}"), replace(NEAR, name="other", pooling_factor=90.0)

    def answer(**own: Any) -> PlacementAnswer:
        asked = {"tables": (NEAR, other), "batch_size": 500, "hardware": model.hardware, **own}
        return place_request(request(**asked), model, PlaceConfig(LITTLE))

    of_sgd, of_adam = "with sgd and 900 to 70,000 lookups", "with adam and 900 to 70,000 lookups"
    sgd, adam, lamb = (answer(optimizer=optimizer) for optimizer in ("sgd", "adam", "lamb"))
    assert sgd.device_error == DeviceError(10.0, 20, of_sgd) and adam.device_error == DeviceError(20.0, 20, of_adam)
    assert answer(table_optimizers={"near": "adam"}).device_error == adam.device_error
    for one, of, factor in ((sgd, of_sgd, "1.11"), (adam, of_adam, "1.22")):
        assert f": 90 % of kernel times {of} within a factor of {factor} (20 held-out" in device_error_text(one)
    assert lamb.device_error == DeviceError(EXTRAPOLATED_PERCENT, 0, "with lamb")
    whole = [whole_part(NEAR, (0,)), whole_part(other, (1,))]
    large = replace(adam.request, batch_size=5000)
    priced = part_costs(large, model).predict(whole)  # 5,000 x 90 lookups on the slower device
    assert device_error(large, model, priced) == DeviceError(45.0, 0, "with adam and 450,000 lookups")
    far = replace(priced, parts=(replace(whole[0], storage=Storage(FUSED_UVM)), whole[1]))  # on the faster device
    assert device_error(adam.request, model, far) == DeviceError(45.0, 0, "with tables outside of device memory")


# Outside of what a model has seen -------------------------------------------------------------------------------------

# Rows to 499,675,273, dims 4 to 512, lookups 0.01 to 300, batches 1,038 to 245,267, 64 devices, 8 to 32 bits.
LEARNED = learned_model().trained_on


def factors(
    tables: tuple[Table, ...],
    device_of_table: tuple[int, ...],
    alone_ms: tuple[float, ...],
    devices: tuple[PredictedDevice, ...],
    batch_size: int = 4096,
    learned: TrainingDomain = LEARNED,
) -> tuple[float, float]:
    asked = PlacementRequest(tables, (10**12,) * len(devices), batch_size, hardware="simulated:h100")
    parts = tuple(whole_part(table, (device,)) for table, device in zip(tables, device_of_table, strict=True))
    return compute_interval_factors(asked, learned, parts, devices, alone_ms)


def took(compute_ms: float, exchange_ms: float = 0.0) -> PredictedDevice:
    return PredictedDevice(compute_ms / 4, exchange_ms, 0.0, compute_ms * 3 / 4)


@pytest.mark.parametrize(
    ("table", "factor"),
    [
        (NEAR, 1.0),
        (WIDE, 4.0),
        (replace(NEAR, embedding_dim=600), 1.0),  # a little beyond
        (replace(NEAR, embedding_dim=2), 2.0),
        (replace(NEAR, pooling_factor=3000.0), 3000 / LEARNED.pooling_factor[1]),
        (replace(NEAR, pooling_factor=0.0), 1.0),  # costs nothing, which needs no training
        (replace(NEAR, num_rows=2 * 499_675_273, embedding_dim=1024), 4.0),
        (replace(NEAR, weight_bits=4, data_type="int4"), 2.0),
        (replace(NEAR, embedding_dim=4096, pooling_factor=3e6), MOST_FACTOR),
    ],
)
def test_how_far_beyond_a_table_is(table: Table, factor: float) -> None:
    assert LEARNED.table_factor(table) == pytest.approx(factor)


def test_each_part_of_the_time_has_the_factor_of_its_own_tables() -> None:
    """8 ms: 6 of tables that were seen, 2 of one that is 4 times beyond, so 6 + 2 / 4 to 6 + 2 * 4; 1 ms exchange."""
    below, above = factors((NEAR, WIDE), (0, 0), (3.0, 1.0), (took(8.0, 1.0), took(1.0)))
    assert (9 / below, 9 * above) == (pytest.approx(1 + 6.5), pytest.approx(1 + 14))
    # Another device may be the slowest then: 10 ms that are sure; 4 ms that may be 16.
    below, above = factors((NEAR, WIDE), (0, 1), (1.0, 1.0), (took(10.0), took(4.0)))
    assert (10 / below, 10 * above) == (pytest.approx(10), pytest.approx(16))
    assert factors((NEAR,), (0,), (1.0,), (took(1.0),)) == (1.0, 1.0)


def test_a_batch_concerns_all_tables_and_devices_the_exchange() -> None:
    batch = int(LEARNED.batch_size[1]) * 2
    assert factors((NEAR,), (0,), (1.0,), (took(3.0, 1.0),), batch) == (pytest.approx(4 / 2.5), pytest.approx(7 / 4))
    few = replace(LEARNED, num_devices=(1.0, 2.0))
    four = tuple(took(3.0, 1.0) for _ in range(4))
    assert factors((NEAR,), (0,), (1.0,), four, learned=few) == (pytest.approx(4 / 3.5), pytest.approx(5 / 4))
    assert LEARNED.exchange_factor(128) == 2.0 and LEARNED.exchange_factor(64) == 1.0
    (line,) = LEARNED.devices_outside([NEAR] * 128, 128)
    assert line == "128 devices are more than the 64 the model was trained on"


def test_only_an_end_that_moves_is_named() -> None:
    assert note_widening(1.0, 1.0) is None and note_widening(1.0001, 1.0001) is None
    assert note_widening(1.0, 6.61) == "Outside the training range: the upper bound is 6.61x wider."
    both = ": the upper bound is 6.61x wider and the lower bound is 2x wider."
    assert (note_widening(2.0, 6.61) or "").endswith(both)


# Tables without traffic: both places of their hot rows ----------------------------------------------------------------

HOT = (0.9, 0.0, 0.0, 0.1) + (0.0,) * 13
UNKNOWN = tuple(Table(f"t{number}", 10**6, 16 + 8 * number, 20.0, HOT) for number in range(5))


def seeing() -> PlacementModel:
    """An untrained model for which hot rows side by side make the most difference of all."""
    model = random_model(sees_hot_rows=True)
    model.net.table_weight.data[-1] *= 100
    return replace(untrained(), cost_model=model)


def placed(tables: tuple[Table, ...], model: PlacementModel) -> PlacementAnswer:
    return evenshard.place(
        tables, 2, 4.0, batch_size=BATCH_SIZE, model=model, hardware="simulated:h100", sharding_types=[TABLE_WISE],
        intra="nvlink_h100", effort="quick",
    )  # fmt: skip


def test_the_interval_of_unknown_hot_rows_holds_both_places() -> None:
    sees = seeing()
    found = placed(UNKNOWN, sees)
    (note,) = [one for one in found.notes if "hot rows" in one]
    assert "adjacent in memory for 5 tables (no row_shares): the interval covers both cases" in note
    known = [tuple(arrange_hot_rows(one, BATCH_SIZE, together) for one in UNKNOWN) for together in (False, True)]
    times = [reprice_answer(placed(own, sees), found.parts, sees).predicted_ms for own in known]
    assert max(times) > 1.2 * min(times)
    assert found.low_ms < min(times) / 1.01 and max(times) * 1.01 < found.high_ms
    costs, ms = part_costs(found.request, sees), found.predicted_ms
    ends = compute_hot_rows_factors(found.request, sees, costs, costs.predict(found.parts))
    assert ends == pytest.approx((max(ms / min(times), 1), max(max(times) / ms, 1)))
    assert any("for 1 table (no row_shares)" in one for one in placed((*known[1][:4], UNKNOWN[4]), sees).notes)
    blind, blind_of_known = placed(UNKNOWN, untrained()), placed(known[1], untrained())
    assert (blind.low_ms, blind.high_ms) == pytest.approx((blind_of_known.low_ms, blind_of_known.high_ms))
    assert not any("hot rows" in one for one in (*blind.notes, *placed(known[0], sees).notes))
