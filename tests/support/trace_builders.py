"""Kineto traces event by event, as torch.profiler writes them, for what no GPU of ours can record."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

OPTIMIZER = "rowwise_adagrad"
LOOKUP = f"fbgemm::split_embedding_codegen_lookup_{OPTIMIZER}_function"
BACKWARD = f"torch::autograd::CppNode<SplitLookupFunction_{OPTIMIZER}_Op>"
LOOKUP_KERNEL = "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 2ul>(...)"
GRADIENT_KERNEL = f"void split_embedding_backward_codegen_{OPTIMIZER}_unweighted_kernel_warp_per_row_1<float>(...)"
NCCL_KERNEL = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
MAIN, AUTOGRAD, GLOO = 1, 2, 3


class TraceBuilder:
    """One rank's trace; times are microseconds."""

    def __init__(self, rank: int = 0, world_size: int = 1, shapes: bool = True) -> None:
        self.rank, self.world_size, self.shapes = rank, world_size, shapes
        self.events: list[dict[str, Any]] = []
        self._launches = 0

    def op(self, name: str, start: float, duration: float, thread: int = MAIN, **args: Any) -> None:
        """An operator or an annotation on the CPU."""
        if not self.shapes:
            args = {key: value for key, value in args.items() if not key.startswith("Input")}
        self._add("cpu_op", name, start, duration, thread, args)

    def kernel(self, name: str, launched: float, start: float, duration: float, thread: int = MAIN) -> None:
        """A kernel that a thread of the CPU launched at a moment."""
        self._launches += 1
        self._add("cuda_runtime", "cudaLaunchKernel", launched, 0, thread, {"correlation": self._launches})
        args = {"correlation": self._launches, "stream": 7, "device": self.rank}
        self._add("kernel", name, start, duration, 7, args)

    def step(self, number: int, start: float, duration: float) -> None:
        """A training step, up to ``prof.step()``."""
        self._add("user_annotation", f"ProfilerStep#{number}", start, duration, MAIN, {})

    def lookup(self, start: float, tables: int = 2, batch: int = 8, lookups: int = 48) -> None:
        """The forward operator of a fused module, without its kernels."""
        sizes = {3: [0, 0], 11: [lookups], 12: [tables * batch + 1], 6: [tables + 1], 9: [tables + 1]}
        dims = [sizes.get(at, [tables] if at in (4, 5) else [0] if at < 3 else []) for at in range(15)]
        kinds = {4: "int", 6: "int", 5: "long", 9: "long", 11: "long", 12: "long", 14: ""}
        types = [kinds.get(at, "float" if at < 4 else "Scalar") for at in range(15)]
        self.op(LOOKUP, start, 10, **{"Input Dims": dims, "Input type": types})

    def backward(self, start: float, sequence: int, batch: int = 8, dims: int = 24) -> None:
        """The node of the backward pass of a fused module, without its kernels."""
        sizes = {"Input Dims": [[batch, dims]], "Input type": ["float"]}
        self.op(BACKWARD, start, 10, AUTOGRAD, **sizes, **{"Sequence number": sequence})

    def exchange(self, around: str, launched: float, start: float, duration: float, thread: int = MAIN,
                 kind: str = "float", name: str = "nccl:all_to_all") -> None:  # fmt: skip
        """An all-to-all, or another collective, under an operator of TorchRec, with its kernel."""
        self.op(around, launched - 2, 6, thread)
        self.op(name, launched - 1, 4, thread, **{"Input Dims": [[64]], "Input type": [kind]})
        self.kernel(NCCL_KERNEL, launched, start, duration, thread)

    def on_gloo(self, around: str, name: str, queued: float, start: float, duration: float, works: str) -> None:
        """A collective on the CPU that an operator of TorchRec queues and one of gloo's threads works off."""
        self.op(around, queued - 2, 6)
        self.op(f"c10d::{name}", queued - 1, 4)
        self.op(f"gloo:{works}", start, duration, GLOO)

    def document(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": device, "name": "NVIDIA H200"} for device in range(8)],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world_size},
            "traceEvents": self.events,
        }

    def save(self, path: Path) -> Path:
        """Writes the trace, compressed if the name says so."""
        text = json.dumps(self.document()).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path

    def _add(self, kind: str, name: str, start: float, duration: float, thread: int, args: dict[str, Any]) -> None:
        self.events.append(
            {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration, "args": args}
        )


def step(trace: TraceBuilder, number: int, late: float, forward: float, backward: float, dims: int = 24,
         batch: int = 8, lookups: int = 48) -> None:  # fmt: skip
    """A step of 2 ms on a rank that is late for both all-to-alls, which take 50 and 30 us of their own."""
    at = 10_000.0 * number
    trace.step(number, at, 2000)
    trace.exchange("## all2all_data:kjt values ##", at + 10, at + 20, 5, kind="long int")
    trace.lookup(at + 100, batch=batch, lookups=lookups)
    trace.kernel(LOOKUP_KERNEL, at + 105, at + 200, forward)
    trace.exchange("All2All_Pooled_Req", at + 120, at + 400 + late, 50 + 300 - late)
    trace.op("autograd::engine::evaluate_function: All2All_Pooled_WaitBackward", at + 690, 30, AUTOGRAD)
    trace.exchange("All2All_Pooled_WaitBackward", at + 700, at + 1000 + late, 30 + 300 - late, AUTOGRAD)
    trace.backward(at + 800, number, batch=batch, dims=dims)
    trace.kernel(GRADIENT_KERNEL, at + 805, at + 1400, backward, AUTOGRAD)
