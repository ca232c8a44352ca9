"""Calls of fused modules: kernel times equal those that others read from the same traces, which have a limit."""

from __future__ import annotations

import csv
import gzip
import io
import re
import tarfile
from pathlib import Path

import pytest

from benchmarks.scripts.gpu_kernels import median_calls
from evenshard.base.errors import BadFile
from evenshard.measure.traces.fused_calls import FusedCall, list_fused_calls, missing_calls_error
from evenshard.measure.traces.kineto import read_traces
from evenshard.price.device_model import BACKWARD_KERNELS, FORWARD_KERNELS
from support.trace_builders import AUTOGRAD, GRADIENT_KERNEL, LOOKUP_KERNEL, TraceBuilder
from support.truth import truth_file

SOURCES = {
    "a100_40gb_8ranks.json.gz": "tests/data/trace_diff/control",
    "v100_16gb_2ranks.json.gz": "tests/data/trace_diff/test",
    "a100_80gb_16ranks.json.gz": "tests/data/negative_queue_length_values_check",
}
CLASSES: dict[str, str] = {
    "kernel: bounds_check_indices": "bounds_check",
    "kernel: embedding_codegen forward lookup": "lookup",
    "kernels: index (linearize, run length, scan, find_long_segments, fills)": "index",
    "kernels: radix sort (histogram, exclusive sum, onesweep)": "sort",
    "kernels: gradient + row-wise Adagrad (CTA per row, warp per row)": "gradient",
    "kernel: grad_indice_weights (weighted pooling only)": "weights_gradient",
}


def observed_calls(path: Path) -> list[FusedCall]:
    """The calls in all traces of a file, in the order of rank and time."""
    calls = [call for trace in read_traces(path) for call in list_fused_calls(trace)]
    if not calls:
        raise missing_calls_error(path)
    return sorted(calls, key=lambda call: call.rank)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SOURCES)
def test_kernels_take_what_others_read_from_the_same_trace(name: str) -> None:
    calls = {call.num_tables: call for call in median_calls(observed_calls(truth_file(f"traces/{name}")))}
    compared = 0
    for row in points(SOURCES[name]):
        kind, span = CLASSES.get(row["what"]), row["what"].startswith("span:")
        if kind is None and not span:
            continue
        call = calls[int(row["T"])]
        assert (call.batch_size, call.sum_of_dims) == (
            int(row["B"]),
            pytest.approx(call.num_tables * float(row["D"]), rel=0.01),
        )
        for column, observed in (
            ("fwd_us", call.forward_span_us if span else kernels_us(call, (kind,))),
            ("bwd_us", call.backward_span_us if span else kernels_us(call, (kind,))),
        ):
            if row[column]:
                assert observed == pytest.approx(float(row[column]), abs=1.0), row["what"]
                compared += 1
        if found := re.search(r"host CPU time of the backward ([\d.]+) us", row["notes"]):
            assert call.backward_host_us == float(found[1])
    assert compared >= 8


def points(source: str) -> list[dict[str, str]]:
    with truth_file("gpu_points.csv").open() as file:
        return [row for row in csv.DictReader(file) if source in row["source"]]


def kernels_us(call: FusedCall, classes: tuple[str, ...]) -> float:
    return sum(sum(call.kernels_us.get(kind, {}).values()) for kind in classes)


def test_a_kernel_belongs_to_the_operator_that_launched_it_however_late_it_runs(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.step(7, 0, 1000)
    trace.lookup(100, tables=2)
    trace.kernel(LOOKUP_KERNEL, launched=105, start=500, duration=40)
    trace.kernel("cat", launched=150, start=545, duration=8)  # between two operators: of neither
    trace.lookup(200, tables=3)
    trace.kernel(LOOKUP_KERNEL, launched=205, start=540, duration=60)
    trace.op("aten::mm", 495, 100)
    trace.kernel("gemm", launched=500, start=505, duration=30)
    trace.backward(300, sequence=12)  # of the second lookup: autograd goes backwards
    trace.kernel(GRADIENT_KERNEL, launched=305, start=700, duration=9, thread=AUTOGRAD)
    trace.backward(320, sequence=11)
    trace.kernel("find_long_segments", launched=322, start=710, duration=2, thread=AUTOGRAD)
    trace.kernel(GRADIENT_KERNEL, launched=325, start=715, duration=5, thread=AUTOGRAD)
    first, second = observed_calls(trace.save(tmp_path / "trace.json"))
    assert (first.num_tables, second.num_tables, first.step, second.position) == (2, 3, 7, 1)
    assert [kernels_us(call, FORWARD_KERNELS) for call in (first, second)] == [40, 60]
    assert [kernels_us(call, BACKWARD_KERNELS) for call in (first, second)] == [7, 9]
    assert (kernels_us(first, ("index",)), first.backward_span_us, first.gpu) == (2, 10, "NVIDIA H200")


def test_what_is_no_trace_of_fbgemm_says_how_to_record_one(tmp_path: Path) -> None:
    other = TraceBuilder()
    other.op("aten::embedding_bag", 0, 10)
    whole = other.save(tmp_path / "other.json.gz")
    torn, cut_text, no_trace, odd = (tmp_path / name for name in ("torn.json.gz", "cut.json", "list.json", "odd.json"))
    torn.write_bytes(whole.read_bytes()[:-20])
    cut_text.write_text('{"traceEvents": [{"ph": "X"')
    no_trace.write_text("[1, 2]")
    other.op("a", "soon", 1)  # type: ignore[arg-type]
    other.save(odd)
    for path, problem in (
        (whole, "it has no FBGEMM operator"),
        (torn, "it is incomplete"),
        (cut_text, "it is incomplete or not JSON"),
        (no_trace, "it has no traceEvents"),
        (odd, "ts is not a valid time"),
        (tmp_path / "missing.json", "no such file"),
        (tmp_path, "it is incomplete or not a trace"),
    ):
        with pytest.raises(BadFile, match=problem) as caught:
            observed_calls(path)
        assert "ecord" in str(caught.value) and str(path) in str(caught.value)


def archive(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:") as written:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        written.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr("evenshard.measure.traces.kineto.MAX_TRACE_BYTES", 2**10)
    spaces = b" " * 20_480
    for name, content in (("a.json", spaces), ("b.json.gz", gzip.compress(spaces))):
        path = tmp_path / (f"{name}.tar" if packed else name)
        path.write_bytes(archive(name, content) if packed else content)
        with pytest.raises(BadFile, match="the trace is larger than 0 GB"):
            list(read_traces(path))
