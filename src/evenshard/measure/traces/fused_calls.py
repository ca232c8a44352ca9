"""Time of each call of a fused FBGEMM module in a trace, by class of kernel.

The kernels of a call are those that its operators launch: the bounds check, the lookup, and the autograd node of the
backward pass, which includes the optimizer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenshard.base.errors import BadFile
from evenshard.measure.traces.kineto import HOW_TO_RECORD, GpuWork, Op, Trace
from evenshard.price.device_model import KERNELS

# Kernel that computes the gradient of ``per_sample_weights`` in weighted pooling; device models ignore its time.
WEIGHTS_GRADIENT = "weights_gradient"
TRACED_KERNELS = (*KERNELS, WEIGHTS_GRADIENT)

DENSE = "dense"  # ``optimizer`` of a module with data_parallel tables, whose weights a dense optimizer updates

_BOUNDS_CHECK = re.compile(r"fbgemm::bounds_check_indices")
_FORWARD = re.compile(r"fbgemm::(?:split|ssd|(dense))_embedding_(?:nobag_)?codegen_lookup_(?:(\w+)_)?function(?:_\w+)?")
_BACKWARD = re.compile(r"torch::autograd::CppNode<(?:Split|SSD|Dense)(?:NoBag)?LookupFunction_\w+>")
# Classes of backward kernels; all other kernels belong to the class "index".
_CLASS_OF_KERNEL: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"RadixSort"), "sort"),
    (re.compile(r"grad_indice_weights"), WEIGHTS_GRADIENT),
    (re.compile(r"(?:cta|warp)_per_row"), "gradient"),
)


@dataclass(frozen=True)
class FusedCall:
    """One call of a fused FBGEMM module in one training step; times are microseconds.

    Values that the trace lacks are None; sizes need ``record_shapes=True``.
    """

    rank: int
    gpu: str  # name of the rank's GPU; "" on the CPU
    step: int | None  # number of the training step; None without ``prof.step()``
    position: int  # index of the call in its step, from 0; a module has the same position in every step
    optimizer: str  # FBGEMM's name, such as "sgd" or "rowwise_adagrad", or "dense"
    weighted: bool | None  # True if the pooling is weighted (``per_sample_weights``)
    num_tables: int | None
    batch_size: int | None
    sum_of_dims: int | None
    num_lookups: int | None
    kernels_us: Mapping[str, Mapping[str, float]]  # sums by class (``TRACED_KERNELS``) and kernel; empty on the CPU
    forward_span_us: float  # from the start of the first kernel to the end of the last
    backward_span_us: float
    forward_host_us: float  # time of the operators on the CPU; without a GPU there are only these times
    backward_host_us: float


def missing_calls_error(path: Path) -> BadFile:
    """Return the error for a trace without any call of a fused FBGEMM module."""
    problem = "it has no FBGEMM operator (fbgemm::split_embedding_codegen_lookup_...)"
    what = "Train with fused embedding modules of TorchRec or FBGEMM; data_parallel tables do not use them"
    return BadFile(path, problem, f"{what}. {HOW_TO_RECORD}.")


def list_fused_calls(trace: Trace) -> list[FusedCall]:
    """Return the calls of fused FBGEMM modules in a trace, by time; empty on a rank without tables."""
    forward_of: dict[int | None, list[tuple[Op, Op | None]]] = defaultdict(list)
    backward_of: dict[int | None, list[Op]] = defaultdict(list)
    bounds_check: dict[object, Op] = {}
    for op in trace.ops:
        step = trace.step_at(op.start_us)
        if _BOUNDS_CHECK.match(op.name):
            bounds_check[op.thread] = op
        elif _FORWARD.fullmatch(op.name):
            forward_of[step].append((op, bounds_check.pop(op.thread, None)))
        elif _BACKWARD.fullmatch(op.name):
            backward_of[step].append(op)
    work: dict[int, list[GpuWork]] = defaultdict(list)
    for kernel in trace.gpu_work:
        for op in kernel.op.around():
            work[id(op)].append(kernel)
    calls = []
    for step, forwards in forward_of.items():
        backward_of[step].sort(key=lambda op: op.sequence or 0)
        backwards: Sequence[Op | None] = backward_of[step]
        if len(backwards) != len(forwards):  # match them by autograd's sequence numbers
            by_sequence: dict[int | None, Op] = {op.sequence: op for op in backward_of[step] if op.sequence is not None}
            backwards = [by_sequence.get(lookup.sequence) for lookup, _ in forwards]
        for position, ((lookup, check), backward) in enumerate(zip(forwards, backwards, strict=True)):
            calls.append(_call(trace, position, lookup, check, backward, work))
    return calls


def _call(
    trace: Trace,
    position: int,
    lookup: Op,
    check: Op | None,
    backward: Op | None,
    work: Mapping[int, Sequence[GpuWork]],
) -> FusedCall:
    checking = work.get(id(check), ()) if check else ()
    looking_up = work.get(id(lookup), ())
    updating = work.get(id(backward), ()) if backward else ()
    kernels: dict[str, dict[str, float]] = {}
    # The other kernel of the bounds check fills its counter.
    by_class: list[tuple[str, GpuWork]] = [
        *(("bounds_check", kernel) for kernel in checking if "bounds_check" in kernel.name),
        *(("lookup", kernel) for kernel in looking_up),
        *((next((kind for form, kind in _CLASS_OF_KERNEL if form.search(one.name)), "index"), one) for one in updating),
    ]
    for kind, kernel in by_class:
        times = kernels.setdefault(kind, {})
        times[kernel.name] = times.get(kernel.name, 0.0) + kernel.duration_us
    found = _FORWARD.fullmatch(lookup.name)
    assert found is not None  # checked by the search
    tables, batch, dims, lookups, weighted = _sizes(lookup, backward)
    return FusedCall(
        rank=trace.rank,
        gpu=trace.gpu,
        step=trace.step_at(lookup.start_us),
        position=position,
        optimizer=found[1] or found[2] or DENSE,
        weighted=weighted,
        num_tables=tables,
        batch_size=batch,
        sum_of_dims=dims,
        num_lookups=lookups,
        kernels_us=kernels,
        forward_span_us=_span([*checking, *looking_up]),
        backward_span_us=_span(updating),
        forward_host_us=lookup.duration_us + (check.duration_us if check else 0.0),
        backward_host_us=backward.duration_us if backward else 0.0,
    )


def _span(work: Sequence[GpuWork]) -> float:
    return max(kernel.end_us for kernel in work) - min(kernel.start_us for kernel in work) if work else 0.0


def _sizes(lookup: Op, backward: Op | None) -> tuple[int | None, int | None, int | None, int | None, bool | None]:
    """Return number of tables, batch size, sum of dims, number of lookups, and True if the pooling is weighted.

    In every version of FBGEMM, the operator's inputs are ..., D_offsets, total_D, max_D, hash_size_cumsum, bits,
    indices, offsets, pooling mode, index weights, ...; total_D and max_D are the first two successive plain numbers.
    """
    types, dims = lookup.input_types, lookup.input_dims
    first = next((i for i in range(1, len(types) - 1) if types[i] == types[i + 1] == "Scalar"), None)
    if first is None or len(types) != len(dims) or first + 7 >= len(dims):
        return None, None, None, None, None
    numbers = [dims[first + offset][:1] for offset in (-1, 4, 5)]  # offsets of the dims, indices, offsets
    if not all(number and isinstance(number[0], int) for number in numbers) or numbers[0][0] < 2:
        return None, None, None, None, None
    (num_dims,), (num_lookups,), (num_offsets,) = numbers
    batch, remainder = divmod(num_offsets - 1, num_dims - 1)  # there is one offset more than bags, and than tables
    sum_of_dims = None
    if lookup.scalars and lookup.scalars[first].isdecimal():
        sum_of_dims = int(lookup.scalars[first])
    elif backward is not None and backward.input_dims and backward.input_dims[0][:1] == (batch,):
        sum_of_dims = sum(size for size in backward.input_dims[0][1:2] if isinstance(size, int))
    weighted = "Scalar" not in types[first + 7] and types[first + 7] != ""
    return num_dims - 1, None if remainder else batch, sum_of_dims, num_lookups, weighted
