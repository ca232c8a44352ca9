"""The loop with its rounds unrolled: order of the stages, and the files of rounds that they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evenshard.loop.loop import STAGES
from evenshard.loop.stage import Reads, Stage, WhichRound, Writes, uses_of

# The stage that writes each artifact.
WRITERS = {name: stage for stage in STAGES for name, one in uses_of(stage.outputs, Writes).items() if one.artifact}


@dataclass(frozen=True)
class LoopStep:
    """One run of a stage, in a round from 1; round 0 is before all rounds, and the last one after them."""

    stage: Stage
    round: int

    @property
    def name(self) -> str:
        """Return the stage's name, with the round if it runs once per round."""
        return f"{self.stage.name}_{self.round}" if self.stage.per_round else self.stage.name

    @property
    def reads(self) -> Mapping[str, tuple[Artifact, ...]]:
        """Return the artifacts of each input: none, one, or one of each round so far."""
        return {name: self._behind(name, one.of) for name, one in uses_of(self.stage.inputs, Reads).items()}

    @property
    def writes(self) -> tuple[Artifact, ...]:
        """Return its outputs for other stages and for people."""
        return tuple(Artifact(name, self.round) for name in uses_of(self.stage.outputs, Writes) if name in WRITERS)

    def _behind(self, name: str, of: WhichRound) -> tuple[Artifact, ...]:
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
    """An output of a step, in a round as of ``LoopStep``."""

    name: str
    round: int

    @property
    def writer(self) -> Stage:
        """Return the stage that writes it."""
        return WRITERS[self.name]

    @property
    def path(self) -> str:
        """Return its path in the loop of dvc.yaml; "" if it has none."""
        return uses_of(self.writer.outputs, Writes)[self.name].path.format(round=self.round)


def steps(num_rounds: int) -> list[LoopStep]:
    """Return all runs of stages in a loop, in order."""
    during = [number for number, stage in enumerate(STAGES) if stage.per_round]
    first, end = during[0], during[-1] + 1
    return [
        *(LoopStep(stage, 0) for stage in STAGES[:first]),
        *(LoopStep(stage, number) for number in range(1, num_rounds + 1) for stage in STAGES[first:end]),
        *(LoopStep(stage, num_rounds) for stage in STAGES[end:]),
    ]
