"""Which optimizers a request's tables have: the user's, or those that their model says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenshard.placement.memory import SGD, optimizer_problem
from evenshard.tables.assumptions import Assumption
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief


@dataclass(frozen=True)
class FusedOptimizer:
    """The optimizer of a table of a model.

    Attributes:
        word: one of ``STATE_NUMBERS``, whose state is counted.
        called: its name in the model.
        where: what of the model names it.
        is_known: whether its state is that of ``word``.
    """

    word: str
    called: str
    where: str
    is_known: bool = True


@dataclass(frozen=True)
class TableOptimizers:
    """The optimizers of a request.

    Attributes:
        optimizer: of tables that have none of their own.
        of_tables: fused optimizers of tables, by name.
        assumptions: about both.
    """

    optimizer: str = SGD
    of_tables: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...] = ()


def optimizers_of(
    names: Sequence[str], fused: Mapping[str, FusedOptimizer], given: str | None = None
) -> TableOptimizers:
    """The optimizers of a model's tables.

    Args:
        names: of all tables.
        fused: those that tables have of their own, by name.
        given: by the user, for all tables; None for what the model says.

    Raises:
        BadConfig: if a table is trained by another optimizer than the given one.
    """
    if given is not None and (problem := optimizer_problem(given)):
        raise BadConfig(f"{problem}. Choose one of these.")
    for name, one in fused.items():
        if given is not None and one.is_known and one.word != given:
            raise BadConfig(
                f"table {brief(name)} is trained by {one.word} ({one.called}, by {one.where}), but optimizer is "
                f"{given}. Leave optimizer out to count what the model says, or change the model."
            )
    words = {name: one.word if one.is_known else given or one.word for name, one in fused.items()}
    usual = Counter(words.values()).most_common(1)[0][0] if words and len(words) == len(names) else SGD
    assumed = [
        Assumption(name, "optimizer", f"{one.called} is not known: its state is counted as {words[name]}'s")
        for name, one in fused.items()
        if not one.is_known
    ]
    if given is None:
        text = f"{SGD}, as FBGEMM trains tables for which the model names none"
        assumed += [Assumption(name, "optimizer", text) for name in names if name not in fused]
    return TableOptimizers(given or usual, words, tuple(assumed))
