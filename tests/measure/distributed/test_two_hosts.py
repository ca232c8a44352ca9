"""Two hosts of two devices with a slow link between them, for real: network namespaces, gloo, torchrun on both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from evenshard.measure.cost_dataset import read_placements
from evenshard.placement.tasks import TaskSplit, save_tasks
from evenshard.price.link import link
from evenshard.tables.files import save_tables
from support.builders import table, task
from support.two_hosts import Host, NotPermitted, torchrun_on, two_hosts

pytestmark = pytest.mark.slow

RATE_GB_S = 0.025  # 200 Mbit/s
SECONDS = 240.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    try:
        with two_hosts("200mbit") as found:
            yield found
    except NotPermitted as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_each_tier_has_a_link_profile(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """Both hosts together send at most twice the rate, which is far less than what they do in themselves."""
    command = ["-m", "evenshard", "calibrate-link", "--hardware", "cpu", "--max-mb", "1", "--out", "my.yaml"]
    said = torchrun_on(hosts, 2, command, tmp_path, SECONDS)
    assert said.count("saved: ") == 2
    assert sorted(path.name for path in tmp_path.glob("*.yaml")) == ["my_inter.yaml", "my_intra.yaml"]
    inter, intra = (link(str(tmp_path / f"my_{tier}.yaml")) for tier in ("inter", "intra"))
    between = inter.bytes_ms(2**20, 2**20, 4 * 2**20, 4)  # all four send 1 MB to the other host
    assert 0.2 < between / (2 * 2**20 / RATE_GB_S / 1e6) < 3  # a fit on a busy machine
    assert intra.bytes_ms(2**20, 2**20, 2 * 2**20, 2) < between / 3
    assert "between nodes of 2 devices" in inter.source and "in node of 2 devices" in intra.source


def test_every_type_is_measured_on_two_hosts(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    pool = tuple(table(f"t{number}", 400, 16, 2.0) for number in range(8))
    save_tables(pool, tmp_path / "tables.parquet")
    of_hosts = task(pool[:4], devices=4, batch_size=1024, task_id="train-000")
    save_tasks(TaskSplit((of_hosts,), (task(pool[4:], devices=4, batch_size=1024, task_id="test-000"),)),
               tmp_path / "tasks.json")  # fmt: skip
    measure = {"hardware": "cpu", "visits": 1, "controls": 0, "repeats": 2, "warmup": 1}
    settings = {"benchmark": {"placements_per_round": 0}, "measure": measure}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings))
    command = ["-m", "evenshard", "benchmark", "--tables", "tables.parquet", "--tasks", "tasks.json", "--sharded", "4",
               "--out", "costs.parquet"]  # fmt: skip
    torchrun_on(hosts, 2, command, tmp_path, SECONDS)
    found = [one for one in read_placements(tmp_path / "costs.parquet", pool) if not one.task.is_whole]
    assert len(found) == 4 and {one.task.machine.devices_per_node for one in found} == {2}
    assert all(one.cost.all_to_all == "measured" and one.provenance.link == "gloo" for one in found)
