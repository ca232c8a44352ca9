"""A promotion as text for the terminal: the verdict and why, then the times it rests on."""

from __future__ import annotations

from typing import TextIO

from evenshard.measure.hardware import measured_or_simulated
from evenshard.stages.decisions.promote import Promotion, PromotionOutcome
from evenshard.utils.console import plain_console, plain_grid
from evenshard.utils.messages import printable
from evenshard.utils.units import ms_text

_WIDTH = 120
"""Of the table, at least."""
_STYLES = {
    PromotionOutcome.PROMOTED: "bold green",
    PromotionOutcome.ALREADY: "bold",
    PromotionOutcome.REFUSED: "bold red",
}


def print_promotion(promotion: Promotion, file: TextIO | None = None) -> None:
    """Prints it.

    Args:
        file: output; None for stdout. Colours go to terminals only.
    """
    console = plain_console(file, _WIDTH)
    line = f"{printable(promotion.candidate)} is {promotion.outcome.value}: {printable(promotion.reason)}."
    console.print(line, style=_STYLES[promotion.outcome], soft_wrap=True)
    decision, found = promotion.decision, promotion.contest
    if decision is not None and found is not None:
        difference = decision.difference_pct
        grid = plain_grid()
        hardware = found.measured[0].provenance.hardware
        timed = measured_or_simulated(hardware)
        grid.add_column("model")
        for head in (f"mean {timed} ms", "tasks without a placement", "placements learned from"):
            grid.add_column(head, justify="right")
        for name, mean_ms, missed, learned in (
            (promotion.candidate, decision.candidate_ms, decision.num_candidate_missed, decision.candidate_measured),
            (promotion.champion, decision.champion_ms, decision.num_champion_missed, decision.champion_measured),
        ):
            grid.add_row(printable(name), ms_text(mean_ms), str(missed), f"{learned:,}")
        console.print(grid)
        if decision.num_common:
            console.print(
                f"Difference {difference.mean:+.2f} % [{difference.low:+.2f}, {difference.high:+.2f}] over "
                f"{decision.num_common} held-out tasks, paired, 95 %; {decision.num_same} of them have the same "
                f"placement. Below {decision.noise_pct:.2f} % is noise.",
                soft_wrap=True,
            )
        console.print(f"All times are {timed}, on {printable(hardware)}.", style="dim")
    if promotion.champion_now:
        console.print(f"The champion is {promotion.champion_now}.")
