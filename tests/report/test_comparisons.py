"""A diff as a comment of a pull request: what it says, a mark to find it by, and names that are no Markdown."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from evenshard.planner.answer import DEFAULT_PLAN, Baseline, DifferenceInterval, PlacementAnswer
from evenshard.planner.baselines import FULL_SPACE
from evenshard.planner.diff import diff
from evenshard.report.comparisons import difference_markdown, marker
from support.explain_builders import additive, answered, asked

THREE = {"a": 5.0, "b": 3.0, "c": 2.0}


def shown(old: PlacementAnswer, new: PlacementAnswer, title: str = "tables.yaml") -> str:
    return difference_markdown(diff(old, new, additive()), old, new, title)


def test_a_comment_has_times_memory_moves_and_the_rest_folded() -> None:
    old, new = answered(asked(THREE, 2), (0, 0, 1)), answered(asked(THREE, 2), (0, 1, 1))
    text = shown(old, new)
    assert text.splitlines()[:4] == [
        "<!-- evenshard placement of tables.yaml -->",
        "### evenshard: `tables.yaml`",
        "",
        "**Embedding work takes 5.00 ms per step, 38 % less than before, at most 100 % above the model's lower "
        "bound.**",
    ]
    assert "| change from the old plan, ms per step | | 3.00 (38 %; 90 %: 31 % to 45 %) less |" in text
    assert "| embedding work, ms per step | 8.00 | 5.00 |" in text
    assert "| moves to other devices | | 320 bytes of 1 table; 640 bytes stay |" in text
    assert "| `b` | 0:10 | 0:8 | 0 | 1 | 320 bytes |" in text.partition("<details><summary>Moves")[2]
    assert "60 % MORE than before" in shown(new, old)
    assert (
        "takes 5.00 ms per step, the same as before" in (same := shown(new, new)) and "nothing; 960 bytes stay" in same
    )


def test_each_side_has_its_own_tables_and_the_old_plan_is_judged_with_the_new_ones() -> None:
    old = answered(asked(THREE, 2), (0, 0, 1))
    new = answered(asked({**THREE, "b": 9.0}, 2), (0, 1, 1))
    text = shown(old, new)
    assert "| embedding work, ms per step | 8.00 | 11.0 |" in text
    assert "| old plan with the new tables, ms per step | | 14.0 |" in text
    against = replace(
        new, comparison=(Baseline(FULL_SPACE, 12.0, chosen=DEFAULT_PLAN, saves=DifferenceInterval(1.0, -0.11, 2.2)),)
    )
    said = "TorchRec's default plan: 12.0 ms, 9.1 % slower (90 %: 1.0 % faster to 20 % slower).  "
    assert said in shown(old, against).splitlines() and "default plan" not in text


def test_tables_that_came_and_went_and_warnings_are_named() -> None:
    old, new = answered(asked(THREE, 2), (0, 0, 1)), answered(asked({"a": 5.0, "d": 1.0}, 2), (0, 1))
    text = shown(old, replace(new, warnings=("num_rows: *far* outside",)))
    assert "- Added: `d` (1 table).\n- Removed: `b`, `c` (2 tables)." in text
    assert "the new plan against" not in text, "times of other tables are no difference"
    assert ": num&#95;rows: &#42;far&#42; outside." in text


def resolved(text: str) -> str:
    """Markdown as GitHub looks for mentions in it: without code, entities resolved."""
    return html.unescape(re.sub(r"<code>.*?</code>|`[^`]*`|<!--.*?-->", "", text))


NAMES = ["a--->@everyone.csv", "--!>", "->", "x-", "`@everyone`", "x\\|@everyone|", "\\`@a", "<!-- @a -->", "</code>@a"]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_ends_the_marker_or_mentions_anybody(name: str) -> None:
    first = marker(name)
    assert len({marker(one) for one in NAMES}) == len(NAMES)
    assert first.startswith("<!-- ") and first.index("--", 4) == len(first) - 3 and first.endswith(" -->")
    old, new = (
        replace(answered(asked({name: 5.0}, 2), (device,)), warnings=(f"{name}: #1 of @all",)) for device in (0, 1)
    )
    text = shown(old, new, name)
    assert "evenshard: " in resolved(text)
    assert not re.search(r"@\w|#\d", resolved(text))
    row = next(line for line in text.splitlines() if "0:10" in line)
    cells = re.sub(r"\\\\.", "", row)  # a backslash takes the next sign with it, before cells are cut
    assert cells.count("|") == 7


def test_many_moves_stay_within_what_a_comment_may_have() -> None:
    request = asked({f"table_{number:04}": 1.0 for number in range(60)}, 2)
    text = shown(answered(request, (0,) * 60), answered(request, (1,) * 59 + (0,)))
    assert "39 smaller moves are not shown." in text
