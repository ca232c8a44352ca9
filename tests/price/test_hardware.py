"""The names of hardware: one parser for every spelling, and what may be said of its kind."""

from __future__ import annotations

import pytest

from evenshard.base.errors import BadConfig
from evenshard.measure.config import MeasureConfig
from evenshard.price.gpu_profile import gpu_profile, profile_of
from evenshard.price.hardware import HardwareName, is_simulated, measured_or_simulated

H200 = HardwareName.of("simulated", "h200")
REAL_H200 = HardwareName.of("cuda", "NVIDIA H200")


def test_a_name_in_every_spelling() -> None:
    assert (str(H200), H200.provenance) == ("simulated:h200", "simulated: h200")
    assert (str(REAL_H200), REAL_H200.provenance) == ("cuda", "cuda: NVIDIA H200")
    own = HardwareName.parse("simulated:profiles/my-gpu.v2.yaml")
    assert (str(own), own.provenance) == ("simulated:profiles/my-gpu.v2.yaml", "simulated: my-gpu.v2")
    for spelling in ("simulated:h200", "simulated: h200", "simulated-h200"):
        assert HardwareName.parse(spelling) == H200


@pytest.mark.parametrize("text", ["tpu", "", "h2", "Simulated:h200"])
def test_an_unknown_kind_lists_the_known_ones(text: str) -> None:
    with pytest.raises(BadConfig, match=f"hardware is '{text}'. Use one of auto, cpu, cuda, simulated:<profile>"):
        HardwareName.parse(text)


@pytest.mark.parametrize(
    ("short", "full"), [("h100", "simulated:h100"), (" H100", "simulated:h100"), ("A100", "simulated:a100_80gb")]
)
def test_a_profile_may_be_called_by_its_name_alone(short: str, full: str) -> None:
    assert str(HardwareName.parse(short)) == MeasureConfig(short).hardware == full
    with pytest.raises(BadConfig, match=f"Did you mean {short.strip().lower()}"):
        HardwareName.parse(f"{short}x")


def test_only_real_hardware_measures() -> None:
    assert {measured_or_simulated(one) for one in ("cpu", "h200", "cuda: NVIDIA H200")} == {"measured"}
    for hardware in ("simulated: h200", "simulated-h200", "cpu: one, simulated: h200", "cpu: one; simulated: h200"):
        assert measured_or_simulated(hardware) == "simulated"


@pytest.mark.parametrize(
    ("asked", "provenance", "has"),
    [
        ("auto", "abacus", True),
        ("cuda", "cuda: NVIDIA H200; cuda: NVIDIA A100", True),
        ("cuda", "cuda: NVIDIA H200; cpu: x", False),
        ("cuda", "", False),
        ("cuda: NVIDIA A100", "cuda: NVIDIA H200", False),
        ("simulated:profiles/a.b.yaml", "simulated: a.b", True),
        ("simulated:h200", "simulated: h200; simulated: v100", False),
    ],
)
def test_whose_costs_they_are(asked: str, provenance: str, has: bool) -> None:
    assert HardwareName.parse(asked).has_measured(provenance) is has


def test_a_kind_says_what_others_ask_of_it() -> None:
    kinds = [HardwareName.of(name, "").kind for name in ("cpu", "cuda", "auto", "simulated")]
    assert [kind.compute_device for kind in kinds] == ["cpu", "cuda", "cuda", "cuda"]
    assert [(kind.is_host, kind.needs_gpu, kind.is_simulated) for kind in kinds] == [
        (True, False, False), (False, True, False), (False, False, False), (False, False, True),
    ]  # fmt: skip
    assert profile_of(H200) == gpu_profile("h200") and profile_of(REAL_H200) is None
    assert is_simulated("cuda: NVIDIA H100, simulated: h100") and not is_simulated("cuda: NVIDIA H100, cpu: EPYC")
