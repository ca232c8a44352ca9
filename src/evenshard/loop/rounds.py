"""The unrolled loop: a list of all runs of stages in order, with the files that they read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evenshard.loop.loop import STAGES
from evenshard.loop.stage import Reads, Stage, WhichRound, Writes, uses_of

# The stage that writes each artifact.
WRITERS = {name: stage for stage in STAGES for name, use in uses_of(stage.outputs, Writes).items() if use.artifact}


@dataclass(frozen=True)
class LoopStep:
    """One run of a stage."""

    stage: Stage
    round: int  # from 1; 0 for a stage before all rounds, and the last round for a stage after them

    @property
    def name(self) -> str:
        """Return the stage's name, with the round if it runs once per round."""
        return f"{self.stage.name}_{self.round}" if self.stage.per_round else self.stage.name

    @property
    def reads(self) -> Mapping[str, tuple[Artifact, ...]]:
        """Return the artifacts of each input: none, one, or one for each round so far."""
        return {name: self._list_artifacts(name, use.of) for name, use in uses_of(self.stage.inputs, Reads).items()}

    @property
    def writes(self) -> tuple[Artifact, ...]:
        """Return the artifacts that this run writes."""
        return tuple(Artifact(name, self.round) for name in uses_of(self.stage.outputs, Writes) if name in WRITERS)

    def _list_artifacts(self, name: str, of: WhichRound) -> tuple[Artifact, ...]:
        if not WRITERS[name].per_round:
            return (Artifact(name, 0),)
        rounds = {
            WhichRound.SAME: range(self.round, self.round + 1),
            WhichRound.PREVIOUS: range(max(1, self.round - 1), self.round),
            WhichRound.SO_FAR: range(1, self.round + 1),
        }
        return tuple(Artifact(name, number) for number in rounds[of])


@dataclass(frozen=True)
class Artifact:
    """An output of a ``LoopStep``, with the round of that step."""

    name: str
    round: int

    @property
    def writer(self) -> Stage:
        """Return the stage that writes this artifact."""
        return WRITERS[self.name]

    @property
    def path(self) -> str:
        """Return the path of this artifact in dvc.yaml; "" if dvc.yaml does not contain it."""
        return uses_of(self.writer.outputs, Writes)[self.name].path.format(round=self.round)


def unroll_loop(num_rounds: int) -> list[LoopStep]:
    """List all runs of stages in a loop, in order."""
    during = [number for number, stage in enumerate(STAGES) if stage.per_round]
    first, end = during[0], during[-1] + 1
    return [
        *(LoopStep(stage, 0) for stage in STAGES[:first]),
        *(LoopStep(stage, number) for number in range(1, num_rounds + 1) for stage in STAGES[first:end]),
        *(LoopStep(stage, num_rounds) for stage in STAGES[end:]),
    ]
