"""Checkpoints of TorchRec for another plan: converts what torch.distributed.checkpoint cannot load itself.

It loads weights and states with a number for each weight under any plan: each rank reads its rows and columns. Two
things it cannot:

- row-wise Adagrad keeps a number for each row of each part. Where columns are cut, TorchRec saves the states of the
  parts one behind the other, so that the saved tensor has another size under every plan.
- the state of replicas is the dense optimizer's, under other names (``sum`` for ``momentum1``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from evenshard.placement.optimizer_state import SGD
from evenshard.placement.parts import Span, TablePart
from evenshard.planner.file import load_answer, read_json
from evenshard.torchrec.plan.file import load_plan_parts
from evenshard.torchrec.running.checkpoint_files import CheckpointFiles, Key
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.messages import brief, cut
from evenshard.utils.outputs import CHECKPOINT_FOLDER

REPORT_FILE = "evenshard.json"
# The states of the tables' optimizers, as TorchRec calls them.
FUSED_NAMES = {"rowwise_adagrad": ("momentum1",), "adagrad": ("momentum1",), "adam": ("momentum1", "exp_avg_sq")}
# The same of the dense model's optimizers, as torch calls them.
DENSE_NAMES = {"rowwise_adagrad": ("sum",), "adagrad": ("sum",), "adam": ("exp_avg", "exp_avg_sq")}
STEP = "step"


@dataclass(frozen=True)
class Conversion:
    """What a conversion did.

    Attributes:
        converted: tables whose optimizer state is another one, or elsewhere.
        inexact: of these, tables of which a part was cut whose columns have one number for each row together.
        begun_anew: of these, tables without a state to begin with, as the optimizers of tables and replicas differ.
        written_bytes: bytes that are new; all others are shared with the old checkpoint.
    """

    converted: tuple[str, ...]
    inexact: tuple[str, ...]
    begun_anew: tuple[str, ...]
    written_bytes: int


def convert_checkpoint(
    source: str | Path,
    old: str | Path,
    new: str | Path,
    out: str | Path,
    optimizer: str | None = None,
    tables_state: str | None = None,
    dense_state: str | None = None,
) -> Conversion:
    """Writes a checkpoint that loads under another plan. TorchRec is not needed, nor a GPU, nor several ranks.

    Args:
        source: folder of the checkpoint.
        old: plan that it was written under: a placement.json, or a plan file of ``--format torchrec``.
        new: plan that it shall load under.
        out: folder to write; it shares the files of tensors with the old one.
        optimizer: of the tables, as evenshard calls it. Needed where the checkpoint has no state of a sharded table.
        tables_state: where the state of the tables' optimizer stands, such as optimizer.state; needed where the
            checkpoint has none.
        dense_state: where that of the dense model's stands; needed where it has none, and replicas shall have one.

    Raises:
        BadFile: if the checkpoint cannot be used, or was not written under the old plan.
        BadConfig: if a plan is of other tables, or the checkpoint does not say what is needed.
    """
    files = CheckpointFiles(Path(source))
    of_old, of_new = plan_parts(old), plan_parts(new)
    if set(of_old) != set(of_new):
        differ = cut(", ".join(sorted(set(of_old) ^ set(of_new))))
        raise BadConfig(f"the plans have different tables: {differ}. Give two plans of the same model.")
    if optimizer is not None and optimizer not in (known := (SGD, *FUSED_NAMES)):
        raise BadConfig(f"optimizer is {brief(optimizer)}, which is none of {', '.join(known)}. Correct it.")
    work = _Work(files, of_old, of_new, optimizer, _place(tables_state), _place(dense_state))
    with atomic_path(out, CHECKPOINT_FOLDER) as draft:
        with files.copy_to(draft):
            for name in work.located:
                work.convert(name)
        done = Conversion(
            converted=tuple(work.converted),
            inexact=tuple(work.inexact),
            begun_anew=tuple(work.begun_anew),
            written_bytes=files.written_bytes,
        )
        (draft / REPORT_FILE).write_text(json.dumps(asdict(done), indent=1) + "\n")
    return done


def plan_parts(path: str | Path) -> Mapping[str, tuple[TablePart, ...]]:
    """The parts of each table of a placement.json or a plan file.

    Raises:
        BadFile: if it is neither.
    """
    content = read_json(path, "a placement or a plan", "Write it with `evenshard place ... -o`.")
    if isinstance(content, dict) and "compute_device" in content:
        parts, _ = load_plan_parts(path)
    else:
        parts = load_answer(path).parts
    result: dict[str, list[TablePart]] = {}
    for part in parts:
        result.setdefault(part.table, []).append(part)
    return {name: tuple(found) for name, found in result.items()}


def _place(text: str | None) -> Key | None:
    return tuple(text.split(".")) if text else None


def _is_replica(parts: Sequence[TablePart]) -> bool:
    return len(parts[0].devices) > 1


def _cuts(parts: Sequence[TablePart]) -> list[Span]:
    """The columns of parts, each once: the order in which TorchRec saves their row-wise states."""
    return sorted({part.columns for part in parts})


class _Work:
    """A conversion under way.

    Args:
        files: the checkpoint, which becomes the copy.
        old, new: parts by table.
        optimizer: as ``convert_checkpoint``.
        tables_state, dense_state: as ``convert_checkpoint``, but as keys.
    """

    def __init__(
        self,
        files: CheckpointFiles,
        old: Mapping[str, tuple[TablePart, ...]],
        new: Mapping[str, tuple[TablePart, ...]],
        optimizer: str | None,
        tables_state: Key | None,
        dense_state: Key | None,
    ) -> None:
        self.files, self.old, self.new = files, old, new
        self.located = _locate_tables(files, old)
        self.converted: list[str] = []
        self.inexact: list[str] = []
        self.begun_anew: list[str] = []
        states = [key for key in files.names if len(key) > 2 and key[-2] in set(self.located.values())]
        dense = [key for key in files.names if len(key) > 2 and key[-1] in (STEP, "sum", "exp_avg", "exp_avg_sq")]
        fused = [key for key in states if "." in str(key[-1])]
        dense = [key for key in dense if key not in fused]
        self.tables_state = tables_state or (fused[0][:-2] if fused else None)
        self.dense_state = dense_state or (dense[0][:-2] if dense else None)
        self.dense_names = {str(key[-1]) for key in dense}
        self.step = next((key for key in dense if key[-1] == STEP), None)
        self.optimizer = optimizer or self._optimizer_of(fused)

    def _optimizer_of(self, fused: Sequence[Key]) -> str | None:
        """The tables' optimizer, as its states say."""
        if any(str(key[-1]).endswith(".exp_avg_sq") for key in fused):
            return "adam"
        if fused:
            return "rowwise_adagrad" if len(self.files.size(fused[0])) == 1 else "adagrad"
        return None

    def convert(self, name: str) -> None:
        """A table's states, for the new plan."""
        was, now = self.old[name], self.new[name]
        if _is_replica(was) and _is_replica(now):
            return
        if _is_replica(now):
            self._to_replica(name)
        elif _is_replica(was):
            self._from_replica(name)
        elif _cuts(was) != _cuts(now):
            self._other_columns(name)

    def _keys(self, name: str) -> dict[str, Key]:
        """A table's states by the name that the optimizer which trains it has for them."""
        fqn = self.located[name]
        return {str(key[-1]): key for key in self.files.names if len(key) > 2 and key[-2] == fqn}

    def _states(self, name: str) -> dict[str, Key]:
        """The states of a sharded table by TorchRec's name for them, without the table's."""
        return {state.rpartition(".")[2]: key for state, key in self._keys(name).items() if "." in state}

    def _other_columns(self, name: str) -> None:
        was, now = _cuts(self.old[name]), _cuts(self.new[name])
        num_rows, dim = _shape_of(self.old[name])
        for state, key in self._states(name).items():
            size = self.files.size(key)
            if size == (num_rows, dim):
                continue
            self._check_rows(name, state, size, num_rows)
            states = [self._row_state(key, was, columns, num_rows) for columns in now]
            self.files.remove(key)
            self.files.write(key, states)
            self.converted.append(name)
            if any(edge not in {edge for span in was for edge in span} for span in now for edge in span):
                self.inexact.append(name)

    def _row_state(self, key: Key, was: Sequence[Span], columns: Span, num_rows: int) -> torch.Tensor:
        """The row-wise state of some columns: the mean of the old parts' states, weighted by the columns they share."""
        result = torch.zeros(num_rows)
        for number, span in enumerate(was):
            shared = min(span.stop, columns.stop) - max(span.start, columns.start)
            if shared > 0:
                values = self.files.rows(key, Span(number * num_rows, (number + 1) * num_rows))
                result.add_(values, alpha=shared / columns.size)
        return result

    def _to_replica(self, name: str) -> None:
        states = self._states(name)
        if not states:
            return  # SGD
        assert self.optimizer is not None
        self._check_fused(name, states)
        self.converted.append(name)
        num_rows, dim = _shape_of(self.old[name])
        names = DENSE_NAMES[self.optimizer]
        if self.dense_state is None or not set(names) <= self.dense_names:
            self.begun_anew.append(name)  # the optimizer of the dense model is another one, or keeps no state
            for key in states.values():
                self.files.remove(key)
            self._begin_replica(name)
            return
        target = (*self.dense_state, self.located[name])
        for fused, dense in zip(FUSED_NAMES[self.optimizer], names, strict=True):
            key = states[fused]
            if self.files.size(key) == (num_rows, dim):
                self.files.rename(key, (*target, dense))
                continue
            self._check_rows(name, fused, self.files.size(key), num_rows)
            values = self._spread(key, _cuts(self.old[name]), self._dense_is_by_row())
            self.files.remove(key)
            self.files.write((*target, dense), [values])
        if self.step is not None:
            self.files.share(self.step, (*target, STEP))

    def _begin_replica(self, name: str) -> None:
        """The state of a replica that has seen no step, by the dense optimizer's names for it."""
        for dense in sorted(self.dense_names):
            assert self.dense_state is not None
            values = torch.zeros(()) if dense == STEP else torch.zeros(_shape_of(self.old[name]))
            self.files.write((*self.dense_state, self.located[name], dense), [values])

    def _spread(self, key: Key, cuts: Sequence[Span], by_row: bool) -> torch.Tensor:
        """A row-wise state as the dense optimizer keeps it: [rows, 1], or for each column that of its part."""
        num_rows = self.files.size(key)[0] // len(cuts)
        if by_row:
            return self._row_state(key, cuts, Span(0, cuts[-1].stop), num_rows).unsqueeze(1)
        parts = [self._row_state(key, cuts, one, num_rows).unsqueeze(1).expand(-1, one.size) for one in cuts]
        return torch.cat(parts, dim=1)

    def _dense_is_by_row(self) -> bool:
        """Whether the dense model's optimizer is TorchRec's row-wise Adagrad: [rows, 1] of weights that are wider."""
        sums = {key[-2]: self.files.size(key) for key in self.files.names if len(key) > 2 and key[-1] == "sum"}
        weights = {key[-1]: self.files.size(key) for key in self.files.names if key[-1] in sums}
        wide = [size for fqn, size in sums.items() if len(size) == 2 and weights.get(fqn, (0, 1))[1:] > (1,)]
        return bool(wide) and all(size[1] == 1 for size in wide)

    def _from_replica(self, name: str) -> None:
        fqn, states = self.located[name], self._keys(name)
        if self.optimizer is None:
            if not states:
                return  # SGD
            raise BadConfig(
                "the checkpoint has no state of a sharded table to tell the tables' optimizer by. Name it "
                "(--optimizer)."
            )
        if self.optimizer == SGD:
            for key in states.values():
                self.files.remove(key)
            return
        if self.tables_state is None:
            raise BadConfig(
                "the checkpoint has no state of a sharded table to tell by where it belongs. Name the place, such as "
                "--tables-state optimizer.state."
            )
        num_rows, dim = _shape_of(self.old[name])
        cuts = _cuts(self.new[name])
        self.converted.append(name)
        by_row = self.optimizer == "rowwise_adagrad"
        if not all(one in states for one in DENSE_NAMES[self.optimizer]):
            self.begun_anew.append(name)
        for fused, dense in zip(FUSED_NAMES[self.optimizer], DENSE_NAMES[self.optimizer], strict=True):
            target = (*self.tables_state, fqn, f"{fqn.split('.')[-2]}.{fused}")
            given = states.get(dense)
            if given is not None:
                self._check_dense(name, dense, given, by_row)
            if given is not None and not by_row:
                self.files.rename(given, target)
                continue
            if by_row:
                self.files.write(target, (self._mean(given, columns, num_rows) for columns in cuts))
            else:
                self.files.write(target, [torch.zeros(num_rows, dim)])
        for key in states.values():
            if key in self.files.names:
                self.files.remove(key)

    def _mean(self, key: Key | None, columns: Span, num_rows: int) -> torch.Tensor:
        """The row-wise state of some columns from one with a number for each weight, or for each row."""
        if key is None:
            return torch.zeros(num_rows)
        values = self.files.rows(key, Span(0, num_rows))
        return values[:, 0] if values.shape[1] == 1 else values[:, columns.start : columns.stop].mean(dim=1)

    def _check_fused(self, name: str, states: Mapping[str, Key]) -> None:
        """Raises BadFile if a sharded table has not the states of the tables' optimizer."""
        expected = FUSED_NAMES.get(self.optimizer or "", ())
        if not expected or not set(expected) <= set(states):
            raise BadFile(
                self.files.path,
                f"table {brief(name)} has the states {cut(', '.join(sorted(states)))}, which are not those of "
                f"{self.optimizer}",
                "Name the tables' optimizer (--optimizer).",
            )

    def _check_dense(self, name: str, state: str, key: Key, by_row: bool) -> None:
        """Raises BadFile if the state of a replica is neither a number for each weight nor, by rows, for each row."""
        num_rows, dim = _shape_of(self.old[name])
        if self.files.size(key) not in ((num_rows, dim), (num_rows, 1 if by_row else dim)):
            raise BadFile(
                self.files.path,
                f"the state {state} of table {brief(name)} has the size {_by(self.files.size(key))}, and the table "
                f"{num_rows:,} x {dim} weights",
                "Give the plan that it was written under (--from).",
            )

    def _check_rows(self, name: str, state: str, size: tuple[int, ...], num_rows: int) -> None:
        """Raises BadFile if a state is not one number for each row of each part of the old plan."""
        if size != (len(_cuts(self.old[name])) * num_rows,):
            raise BadFile(
                self.files.path,
                f"the state {state} of table {brief(name)} has the size {_by(size)}, and "
                f"{len(_cuts(self.old[name]))} parts by columns have {num_rows:,} rows each",
                "Give the plan that it was written under (--from).",
            )


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size)) or "one number"


def _shape_of(parts: Sequence[TablePart]) -> tuple[int, int]:
    """Rows and columns of the table that parts make."""
    return max(part.rows.stop for part in parts), max(part.columns.stop for part in parts)


def _locate_tables(files: CheckpointFiles, tables: Mapping[str, tuple[TablePart, ...]]) -> dict[str, str]:
    """The full name of each table's weights in the model.

    Raises:
        BadConfig: if the checkpoint lacks tables.
        BadFile: if a table has other rows or columns there.
    """
    result = {}
    for key in files.names:
        path, dot, rest = str(key[-1]).rpartition(".embedding_bags.")
        if not dot:
            path, dot, rest = str(key[-1]).rpartition(".embeddings.")
        name, _, last = rest.rpartition(".")
        if not dot or last != "weight":
            continue
        known = next((one for one in (name, f"{path}.{name}") if one in tables), None)
        if known is None:
            continue
        shape = _shape_of(tables[known])
        if files.size(key) != shape:
            problem = f"table {brief(known)} has {_by(files.size(key))} weights, {shape[0]} x {shape[1]} in the plan"
            raise BadFile(files.path, problem, "Give its plan.")
        result[known] = str(key[-1])
    if missing := sorted(set(tables) - set(result)):
        raise BadConfig(f"the checkpoint has no weights of {cut(', '.join(missing))}. Give the plans of its model.")
    return result
