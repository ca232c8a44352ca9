"""The fitted links against published nccl-tests, which no part of the repository holds."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scripts.fit_links import (
    LINK_OF_GPU,
    Truth,
    errors_of,
    fitted_curves,
    nodes_link,
    nodes_us,
    read_nodes,
    read_truth,
    rule_errors,
)
from evenshard.price.link import LINKS, NVLINK_GB_S
from support.truth import truth_file

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def truth() -> tuple[Truth, int]:
    return read_truth(truth_file("nccl.csv").parent)


@pytest.mark.parametrize("name", ["pcie4_host", *sorted(NVLINK_GB_S)])
def test_each_link_is_as_measured(name: str, truth: tuple[Truth, int]) -> None:
    """Of each collective and number of GPUs: what ``fit_links --write`` wrote is what it fits."""
    of_kind = truth[0][name]
    written = {(one.collective, one.num_devices): one for one in LINKS[name].curves}
    assert name in LINK_OF_GPU.values() and set(of_kind) <= set(written)
    for curve in fitted_curves({kind: of_kind[kind] for kind in list(of_kind)[:2]}):
        assert written[curve.collective, curve.num_devices] == curve
    for kind, rows in of_kind.items():
        errors = errors_of(written[kind], rows)
        # Two sources of all-reduces differ, and so do two runs of 8 GPUs that share a host's path.
        is_noisy = kind == ("all_reduce", 8) or (name == "pcie4_host" and kind[1] == 8)
        assert np.median(errors) < (0.14 if is_noisy else 0.05) and errors.max() < (0.6 if is_noisy else 0.20), kind


def test_nodes_on_efa_are_as_measured(truth: tuple[Truth, int]) -> None:
    """And the link file is what the fit writes."""
    nodes = read_nodes(truth_file("collectives_2026.csv").parent, LINKS["nvlink_h100"])
    found, _ = nodes_link(nodes)
    assert found.evidence == LINKS["efa_400g"].evidence
    for curve in found.curves[:-1]:
        errors = np.abs(nodes_us(curve, nodes[curve.collective]) / nodes[curve.collective].us_P - 1)
        assert curve in LINKS["efa_400g"].curves and np.median(errors) < 0.06


def test_links_by_rule(truth: tuple[Truth, int]) -> None:
    """As the evidence of links by rule says."""
    links = {name: LINKS[name] for name in NVLINK_GB_S}
    alike = [name for name in NVLINK_GB_S if name != "nvlink_a100"]
    for name, same_line, names in (("nvlink_b300", True, alike), ("nvlink_v100", False, list(NVLINK_GB_S))):
        errors = np.concatenate([rule_errors(one, links, truth[0], same_line) for one in names])
        (evidence,) = LINKS[name].evidence
        assert evidence.held_out == len(errors)
        assert evidence.median_error_percent == pytest.approx(100 * np.median(errors), abs=0.06)
        assert evidence.p90_error_percent == pytest.approx(100 * np.percentile(errors, 90), abs=0.06)
