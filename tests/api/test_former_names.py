"""Names that users import keep working where a package got another name."""

from __future__ import annotations

import pytest


def test_the_former_name_of_torchrecs_package_warns() -> None:
    import evenshard.torchrec

    with pytest.warns(DeprecationWarning, match=r"import EvenshardPlanner from evenshard\.torchrec"):
        from evenshard.planner.torchrec import EvenshardPlanner
    assert EvenshardPlanner is evenshard.torchrec.EvenshardPlanner
