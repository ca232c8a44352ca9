"""The page of an answer: everything in it, nothing from elsewhere, and bars as long as the numbers say."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

import evenshard
from evenshard.base.errors import MissingPackage
from evenshard.cli import main
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import Span, Storage, TablePart
from evenshard.planner.answer import Baseline, PlacementAnswer
from evenshard.planner.baselines import FULL_SPACE, RULE, TORCHREC
from evenshard.planner.rules import Rules
from evenshard.price.costs import DeviceCost, PlacementCost
from evenshard.report.page.page import Axis, baseline_axis, device_bars, host_bars, page, time_axis
from evenshard.sharders.catalog import HEURISTICS
from evenshard.tables.assumptions import Assumption
from support.answer_builders import GB, answer
from support.builders import cost, table
from support.patience import PATIENCE_S

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = ("</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "https://x.y/z.js")


class Elements(HTMLParser):
    """Tags with their attributes, and the text outside of style and script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._quiet = "", False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "
        self._quiet = tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self._quiet = False
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += "" if self._quiet else data


def full() -> PlacementAnswer:
    """An answer with something in every section."""
    names = (*HOSTILE, "plain")
    return answer(
        (0, 1, 1, 0, 1, 0),
        tables=[table(name, 2**20, 64) for name in names],
        cuts={"plain": (16,)},
        caps=(2 * GB, 3 * GB),
        asked={
            "reserved_bytes": GB // 2,
            "optimizer": "adam",
            "sharding_types": (),
            "rules": Rules({names[0]: (0,)}, {names[1]: (0,)}, together=(names[2:4],), apart=(names[:2],)),
            "assumptions": tuple(Assumption(name, "pooling_factor", "<b>1</b>") for name in names),
        },
        warnings=("1 table has <i>more</i> rows",),
        measured=cost(5.0, 2.5),
        comparison=(
            Baseline("size_greedy", 8.0, 7.5),
            Baseline("dim_greedy", 3.0, note="breaks"),
            Baseline("x", None, note="no"),
        ),
    )


@functools.cache
def full_page() -> str:
    return page(full())


def test_nothing_comes_from_elsewhere() -> None:
    html = full_page()
    for tag, attributes in Elements(html).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "image", "use"), tag
        assert not set(attributes) & {"src", "srcset", "data", "action", "background", "xlink:href"}
        assert (attributes.get("href") or "#").startswith("#")
        assert "url(" not in (attributes.get("style") or "")
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert "default-src 'none'" in html
    # The only address is the hostile table's name.
    assert set(re.findall(r"https?://[^\s<\"&,]+", html)) == {HOSTILE[3]}


def test_hostile_names_are_text() -> None:
    elements = Elements(full_page())
    assert [tag for tag, _ in elements.tags].count("script") == 1
    assert not any(name.startswith("on") for _, attributes in elements.tags for name in attributes)
    assert all(text in elements.text for text in (*HOSTILE, "<b>1</b>", "<i>more</i>"))
    html = page(answer(tables=[table("a\u202ecod.exe", 9, 64), table("b\x00", 9, 64), table("c", 9, 64)]))
    assert "\u202e" not in html and "\x00" not in html and "a\ufffdcod.exe" in html


def test_the_numbers_are_the_answers() -> None:
    one, text = full(), " ".join(Elements(full_page()).text.split())
    for part in one.parts:
        way = "column_wise" if part.table == "plain" else "table_wise"
        assert f"{part.table} {way} 0:1048576 {part.columns} {part.device} 1,048,576" in text
    for said in (
        "5 tables on 2 devices",
        "5.00 ms of embedding work per step, simulated all-to-all modelled",
        "4.00 ms of embedding work per step, predicted 90 %: 3.60 to 4.40",
        "3.20 ms lower bound",
        "this placement is at most 25 % above",
        "7.50 ms best baseline, simulated greedy by size, whole tables: 50 % slower",
        "75 % balance: average device 3.00 ms, slowest with waits 4.00 ms",
        # Two tables of 64 dims and 48 of the columns of a third; Adam keeps two more numbers per weight.
        "of 4.00 GB memory used fullest: device 0",
        "0 3 0.250 1.000 0.500 0.250 2.000 4.000 0.000 5.00",
        "greedy by size 8.00 ms 50 % slower 7.50 simulated",
        "greedy by dim 3.00 ms 25 % faster breaks a rule",
        "x no placement",
        "Apart </script>",
    ):
        assert said in text, said


def test_odd_answers_have_a_page() -> None:
    many = page(
        answer(range(40), [4.0 + number / 40 for number in range(40)], [table(f"t{n}", 9, 64) for n in range(40)])
    )
    assert many.count('class="column"') == 80 and "device 39 is the slowest" in many
    for lineage in ({}, {"model": None}, {"model": {"trained_on": {"num_rows": "many"}}}, {"tables": 3}):
        assert "Full lineage" in page(answer(lineage=lineage))
    lost = PlacementCost((DeviceCost.out_of_memory(), DeviceCost(1, 0, 0, 1)), "modelled")
    assert "out of memory" in page(answer(measured=lost))
    page(answer(totals_ms=(0.0, 0.0), model_low_ms=0.0, model_high_ms=0.0, lower_bound_ms=1e-9))


# Bars -----------------------------------------------------------------------------------------------------------------


def test_bars_are_proportional() -> None:
    one = answer(caps=(GB, 2 * GB), asked={"reserved_bytes": GB // 4})
    axis, drawn = time_axis(one), Elements(page(one))
    styles = [(str(own.get("class")), str(own.get("style"))) for tag, own in drawn.tags if tag == "i"]
    times = [float(style[6:-1]) for name, style in styles if name[0] == "k" and re.fullmatch(r"width:[\d.]+%", style)]
    assert times[:5] == pytest.approx([2 * pct for pct in times[5:]], abs=1e-3)
    assert sum(times[:5]) == pytest.approx(axis.pct(4.0), abs=1e-3)
    first, second = device_bars(one)
    # 0.25 and 0.5 GB of weights, 0.25 GB reserved of 1 and 2 GB.
    assert [(part.name, part.pct) for part in first.segments] == [("weights", pytest.approx(25))]
    assert [part.pct for part in second.segments] == [pytest.approx(25)]
    assert (first.reserved_pct, first.pct) == pytest.approx((25, 50))
    assert (second.reserved_pct, second.pct, second.full_pct) == pytest.approx((12.5, 100, 100 / 3.5))
    assert first.peak_pct == 0


def offloaded() -> PlacementAnswer:
    """Table a in device memory, b behind a cache of half, c in host memory; two hosts, one of which holds nothing."""
    kept = (Storage(), Storage("fused_uvm_caching", 0.5), Storage("fused_uvm"))
    parts = tuple(
        TablePart(name, Span(0, 2**20), Span(0, 64), (0,), storage) for name, storage in zip("abc", kept, strict=True)
    )
    machine = Nodes(2, 1, inter="ib_400g", host_bytes=(GB, 2 * GB), host_gb_s=200.0)
    asked = {"machine": machine, "training_pipeline": "sparse_dist", "optimizer": "adam", "dense_bytes": GB // 4}
    return answer(parts=parts, caps=(4 * GB, 4 * GB), asked=asked)


def test_memory_component_by_component() -> None:
    first, second = device_bars(offloaded())
    assert [part.name for part in first.segments] == [
        "weights", "optimizer state", "caches", "inputs", "outputs", "own samples", "dense model"
    ]  # fmt: skip
    pct = {part.name: part.pct for part in first.segments}
    assert pct["weights"] == 6.25 and pct["optimizer state"] == 12.5 and pct["dense model"] == 6.25
    assert pct["caches"] == pytest.approx(3.125 + 100 * (2**20 * 4 + 2**19 * 16) / (4 * GB))
    assert [part.name for part in second.segments] == ["own samples", "dense model"]
    assert (first.peak_pct, second.peak_pct) == (0, 0)  # next to nothing more
    assert {part.kind for part in second.segments} < {part.kind for part in first.segments}


def test_a_peak_at_another_moment() -> None:
    """Of an idle device: a fourth of its memory as outputs are exchanged, three as gradients are ordered."""
    one = answer((0,), tables=[table("a", 64, 2048)], asked={"training_pipeline": "none"}, caps=(2**23, 2**20))
    busy, idle = device_bars(one)
    assert (busy.peak_pct, round(idle.peak_pct)) == (0, 75)
    assert sum(part.pct for part in idle.segments) == pytest.approx(25, abs=0.2)
    assert idle.full_pct == idle.peak_pct


def test_memory_of_hosts() -> None:
    first, second = host_bars(offloaded())
    assert (first.label, second.label) == ("host 0", "host 1")
    assert [(part.name, part.pct) for part in first.segments] == [("weights", 50), ("optimizer state", 100)]
    assert (first.used_bytes, first.pct, first.full_pct) == (3 * GB // 2, 50, 150)
    assert (second.segments, second.used_bytes, second.pct) == ((), 0, 100)
    assert host_bars(answer()) == ()
    parts = tuple(replace(part, storage=Storage("key_value", 0.5)) for part in offloaded().parts)
    on_ssd = replace(offloaded(), parts=parts)
    assert [bar.label for bar in host_bars(on_ssd)] == ["host 0, SSDs", "host 1, SSDs"]


def test_bars_of_baselines_are_proportional() -> None:
    axis, html = baseline_axis(full()), full_page()
    compared = html[html.index('id="comparison"') : html.index('id="deciding"')]
    widths = [float(pct) for pct in re.findall(r"var\(--others\);width:([\d.]+)%", compared)]
    assert widths[0] / widths[1] == pytest.approx(3 / 8, abs=1e-5) and widths[2] == 0
    assert f'class="seen" style="left:{axis.pct(7.5):.4f}%"' in compared


@pytest.mark.parametrize("longest", [1e-4, 1.0, 2.66, 12345.0])
def test_ticks_are_round_and_few(longest: float) -> None:
    axis = Axis.of([longest, 0.0, float("inf")])
    assert 3 <= len(axis.ticks) <= 7
    assert axis.pct(longest) == pytest.approx(100 / 1.02)
    for pct, text in axis.ticks:
        assert axis.pct(float(text.replace(",", ""))) == pytest.approx(pct)


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["", "TorchRec is not installed."])
def test_the_command_writes_the_page_and_says_that_torchrec_is_missing(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    @functools.wraps(evenshard.place)  # flags come from its signature
    def place(*args: object, compare: tuple[str, ...], **more: object) -> PlacementAnswer:
        asked.append(compare)
        return full()

    def require_torchrec() -> None:
        if reason:
            raise MissingPackage(reason)

    monkeypatch.setattr("evenshard.cli.place.place", place)
    monkeypatch.setattr("evenshard.torchrec.baseline.topology.require_torchrec", require_torchrec)
    assert main(["place", "t.yaml", "--report", str(tmp_path / "out.html")]) == 0
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert text == page(full(), reason)
    assert not reason or f"TorchRec's planner was not compared: {reason}" in unescape(text)
    assert asked == [(*HEURISTICS, RULE, *(() if reason else (*TORCHREC, FULL_SPACE)))]
    monkeypatch.setattr("evenshard.cli.place._torchrec", lambda: pytest.fail("importing TorchRec takes seconds"))
    assert main(["place", "t.yaml"]) == 0 and asked[-1] == HEURISTICS


# A browser ------------------------------------------------------------------------------------------------------------

PROBE = """<script>
const width = (selector) => document.querySelector(selector).getBoundingClientRect().width;
find.value = "device 1";
find.dispatchEvent(new Event("input"));
const shown = [...document.querySelectorAll("#tables tbody tr")].filter((row) => !row.hidden);
document.querySelector("#tables th:nth-child(4)").click();
document.body.dataset.seen = JSON.stringify({
  track: width("#time-0"), forward: width("#time-0 .k1"), backward: width("#time-0 .k4"), other: width("#time-1 .k1"),
  used: width("#memory-0 .m0") + width("#memory-0 .m1"), cap: width("#memory-0 .cap"),
  devices: shown.map((row) => row.cells[4].textContent),
  starts: [...document.querySelectorAll("#tables tbody tr")].map((row) => row.cells[3].textContent),
  overflow: document.documentElement.scrollWidth - innerWidth, alerts: window.alerted ?? 0,
});
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the page was not opened in a browser")
def test_a_browser_draws_bars_as_long_as_the_numbers_say(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    one = full()
    html = page(one).replace("<script>", "<script>window.alert = () => { window.alerted = 1; };</script><script>", 1)
    (tmp_path / "page.html").write_text(html.replace("</body>", PROBE), encoding="utf-8")
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --window-size=600,900 --dump-dom"
    )
    ran = subprocess.run(
        [CHROMIUM, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    body = next(attributes for tag, attributes in Elements(ran.stdout).tags if tag == "body")
    seen = json.loads(body["data-seen"] or "")
    axis = time_axis(one)
    assert seen["forward"] / seen["track"] == pytest.approx(1.0 / axis.stop, abs=2e-3)
    assert seen["backward"] == pytest.approx(2 * seen["forward"], abs=1)
    assert seen["other"] == pytest.approx(seen["forward"] / 2, abs=1)
    assert seen["used"] / seen["cap"] == pytest.approx(one.used_bytes[0] / (2 * GB), abs=1e-2)
    assert seen["devices"] == ["1", "1", "1"]
    assert seen["starts"] == ["0:64", "0:64", "0:64", "0:64", "0:16", "16:64"]
    assert seen["overflow"] <= 0
    assert seen["alerts"] == 0
