"""Profile files: constants with their sources, there and back, and nothing else."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest
import yaml

from evenshard.base.errors import BadConfig, BadFile
from evenshard.price.evidence import Evidence
from evenshard.price.gpu_profile import (
    BY_KERNEL,
    RATES,
    GpuProfile,
    gpu_profile,
    read_profile,
    sources_of,
    write_profile,
)
from evenshard.price.hardware import profile_names, profile_of_gpu, profile_path
from evenshard.price.link import link


@dataclass(frozen=True)
class Kettle:
    """A thing with constants."""

    maker: str
    litres: float
    watts: float
    evidence: tuple[Evidence, ...] = ()
    extrapolated_from: str = ""


SOUND = {
    "maker": "Acme",
    "litres": {"value": 1.7, "source": "engraved on its bottom"},
    "watts": {"value": 2200, "source": "data sheet"},
}


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "kettle.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def test_each_profile_is_complete_physical_and_names_its_sources() -> None:
    for name in profile_names():
        found, sources = read_profile(profile_path(name), GpuProfile), sources_of(profile_path(name))
        numbers = {field.name: getattr(found, field.name) for field in fields(found) if field.type == "float"}
        zero = {constant for constant, number in numbers.items() if number <= 0}
        beside = set() if name == "rtx_2080_ti" else {"short_call_us", "medium_call_us"}
        assert zero - set(BY_KERNEL) == beside and zero & set(BY_KERNEL) in (set(), set(BY_KERNEL))
        assert found.hbm_efficiency <= 1 and found.l2_usable_share <= 1 and found.hbm_gb_s < 3 * found.l2_gb_s
        assert found.bag_hit_ns < found.bag_miss_ns, "the L2 is nearer than memory"
        assert link(found.link).bandwidth_gb_s > 0
        assert set(sources) == set(numbers) and all(len(source) > 10 for source in sources.values())


def test_a_gpu_has_the_profile_of_its_name() -> None:
    drivers = {
        "NVIDIA GB300": "gb300", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA A100-SXM4-80GB": "a100_80gb",
        "A100-PG509-200": "a100_40gb", "NVIDIA GeForce RTX 2080 Ti": "rtx_2080_ti", "AMD Instinct MI300X": "mi300x",
        "NVIDIA GeForce RTX 2080": None, "NVIDIA GH200 480GB": None, "cpu": None,
    }  # fmt: skip
    assert {driver: profile_of_gpu(driver) for driver in drivers} == drivers


def test_a_profile_is_found_by_name_or_by_path() -> None:
    assert profile_path("h200").name == "h200.yaml" and profile_path("h200").exists()
    assert profile_path("somewhere/mine.yaml") == Path("somewhere/mine.yaml")
    assert profile_path("mine.yml") == Path("mine.yml")
    with pytest.raises(BadConfig, match=r"simulated device is 'abacus'.*h200.*or a YAML file"):
        profile_path("abacus")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({name: SOUND[name] for name in ("maker", "litres")}, "watts is missing"),
        ({**SOUND, "colour": "red"}, "'colour' is unknown"),
        ({**SOUND, "watts": {"value": 2200, "source": ""}}, "constant watts needs a value and a source"),
        ({**SOUND, "watts": {"value": "2200", "source": "data sheet"}}, "watts is '2200', not a number"),
        ({**SOUND, "watts": {"value": -1, "source": "data sheet"}}, "watts is -1.0, not a number from 0"),
        ({**SOUND, "watts": {"value": float("nan"), "source": "data sheet"}}, "watts is nan"),
        ({**SOUND, "evidence": [{"points": "boils"}]}, r"evidence\[0\]: source is missing"),
        ([], "is not a YAML mapping of constants"),
        ("maker: [", "not readable as YAML"),
    ],
)
def test_a_broken_profile_is_named_with_file_and_constant(tmp_path: Path, content: object, words: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(BadFile, match=words) as caught:
        read_profile(path, Kettle)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


BOILS = Evidence("boils of a litre", "Acme's laboratory", 12, 20, 3.0, 9.5)


def test_a_calibrated_profile_keeps_the_other_constants_and_their_sources(tmp_path: Path) -> None:
    """Six digits of each new one; what confirmed the old ones says nothing about them."""
    old = {"evidence": [asdict(BOILS)], "extrapolated_from": "the kettle before it"}
    template, path = written(tmp_path, {**SOUND, **old}), tmp_path / "calibrated.yaml"
    new = Evidence("whistles", "this kitchen", 7, 0)
    write_profile(template, {"watts": 2345.6789}, "fitted to 12 kettles", [new], path)
    assert read_profile(path, Kettle) == Kettle("Acme", 1.7, 2345.68, (new,))
    content = yaml.safe_load(path.read_text())
    evidence = [{"points": "whistles", "source": "this kitchen", "fitted": 7, "held_out": 0}]
    watts = {"value": 2345.68, "source": "fitted to 12 kettles"}
    assert content == {**SOUND, "watts": watts, "evidence": evidence}
    assert list(content) == [*SOUND, "evidence"]
    with pytest.raises(BadFile, match="no such file"):
        write_profile(tmp_path / "none.yaml", {}, "nothing", [], path)


def test_no_time_is_divided_by_zero(tmp_path: Path) -> None:
    for name in RATES:
        content = yaml.safe_load(profile_path("h200").read_text())
        content[name]["value"] = 0
        (tmp_path / "gpu.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(BadFile, match=f"constant {name} is 0.0, not a number from 1e-09"):
            gpu_profile(str(tmp_path / "gpu.yaml"))
