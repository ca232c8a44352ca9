"""What goes wrong in planning, as callers of TorchRec's planner expect it: a ``PlannerError`` with one of its types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenshard.utils.errors import BadConfig, EvenshardError

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import PlannerError


class TooStrict(BadConfig):
    """Rules and constraints that leave a table no way to be sharded."""


def planner_error(error: EvenshardError, kind: str = "") -> PlannerError:
    """TorchRec's error with evenshard's line.

    Args:
        error: evenshard's.
        kind: a name of ``PlannerErrorType``. Where left out: STRICT_CONSTRAINTS of rules that are too strict,
            INPUT_VALIDATION of everything else; OTHER where the installed TorchRec does not have that.
    """
    from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

    kind = kind or ("STRICT_CONSTRAINTS" if isinstance(error, TooStrict) else "INPUT_VALIDATION")
    return PlannerError(str(error), getattr(PlannerErrorType, kind, PlannerErrorType.OTHER))
