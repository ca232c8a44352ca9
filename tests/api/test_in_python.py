"""An answer in Python and in a notebook: its text, its HTML, its data frame and its page."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path

import pandas as pd

from evenshard.report.answer import brief_text, print_answer
from evenshard.report.page.page import page
from support.answer_builders import answer
from support.builders import table

WAYS = ("table_wise", "column_wise", "data_parallel")
MIXED = answer(
    (0, (0, 1), 0, 1),
    tables=[table("whole", 2**20, 64), table("twice", 2**10, 8), table("cut", 2**20, 64)],
    cuts={"cut": (48,)},
    asked={"sharding_types": WAYS},
)


def test_its_text_is_about_ten_lines() -> None:
    lines = repr(MIXED).splitlines()
    assert lines == brief_text(MIXED).splitlines() and 7 <= len(lines) <= 11
    assert lines[0] == "PlacementAnswer: 3 tables on 2 x simulated:h100, batch 64"
    assert lines[1].endswith(" 4.00 ms of embedding work per step, predicted (90 %: 3.60 to 4.40 ms)")
    assert lines[2].endswith(" At most 25 % above the model's lower bound, 3.20 ms")
    assert lines[3].endswith("2.00 to 4.00 ms, the slowest is device 0")
    # forward 1/4, backward 1/2, and three communication times of 1/8, 1/16 and 1/16 of 4 ms
    assert lines[4].endswith("forward 1.00 + communication 1.00 + backward 2.00 + waits 0.00 = 4.00 ms")
    assert lines[6].endswith("1 table_wise, 1 data_parallel, 1 column_wise")
    assert ".summary(), .to_frame(), .save_report(path)" in lines[-1]
    assert max(map(len, lines)) <= 120


def test_its_summary_and_its_page_are_those_of_the_command(tmp_path: Path) -> None:
    text = io.StringIO()
    print_answer(MIXED, text)
    assert MIXED.summary().split() == text.getvalue().split()
    MIXED.save_report(str(tmp_path / "page.html"))
    written = (tmp_path / "page.html").read_text()
    assert written == page(MIXED)
    for said in (MIXED.summary(), repr(MIXED), re.sub("<[^>]*>", " ", written)):
        words = " ".join(said.split())
        assert "4.00 ms of embedding work per step" in words  # a step has a dense rest, which no answer prices
        assert "ms per step" not in words and "ms a step" not in words


def test_its_frame_has_a_row_for_each_part() -> None:
    frame = MIXED.to_frame()
    assert list(frame["table"]) == ["whole", "twice", "cut", "cut"]
    assert list(frame["sharding_type"]) == ["table_wise", "data_parallel", "column_wise", "column_wise"]
    assert list(frame["device"]) == [0, pd.NA, 0, 1] and list(frame["devices"]) == [(0,), (0, 1), (0,), (1,)]
    assert list(frame["first_column"]) == [0, 0, 0, 48] and list(frame["num_columns"]) == [64, 8, 48, 16]
    assert list(frame["num_rows"]) == [2**20, 2**10, 2**20, 2**20]
    assert list(frame["kernel"].unique()) == ["fused"]
    # 2**20 rows x 64 columns x 4 bytes are a quarter of a GB
    assert list(frame["memory_gb"]) == [one / 2**30 for one in MIXED.part_bytes] and frame["memory_gb"][0] >= 0.25
    assert list(frame["alone_ms"]) == [1.0] * 4 and list(frame["adds_ms"]) == [0.5] * 4


def test_a_notebook_shows_the_page_in_a_frame_of_its_own() -> None:
    hostile = '</iframe><script>alert(1)</script>"'
    mine = answer((0, (0, 1)), tables=[table("a"), table(hostile)], asked={"sharding_types": WAYS})
    shown = mine._repr_html_()
    (source,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert html.unescape(source) == page(mine)
    assert 'sandbox="allow-scripts"' in shown, "it reaches neither the notebook nor its origin"
    assert "<script" not in shown and (shown.count("<iframe"), shown.count("</iframe>")) == (1, 1)
