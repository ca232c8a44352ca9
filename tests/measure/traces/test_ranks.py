"""Ranks beside each other: the kinds of their collectives, waiting, and the rank that a step waits for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenshard.base.errors import BadFile, BadInput
from evenshard.loop.observe import observation_text
from evenshard.measure.traces.collectives import CollectiveKind, find_collectives
from evenshard.measure.traces.kineto import read_traces
from evenshard.measure.traces.ranks import observe
from evenshard.price.step_time import step_ms
from support.trace_builders import LOOKUP_KERNEL, MAIN, NCCL_KERNEL, TraceBuilder, step

KIND_OF_OPERATOR: dict[str, CollectiveKind] = {
    "## alltoall_fwd_single ##": "forward",
    "All2All_Pooled_Req": "forward",
    "ReduceScatterBase_Req": "forward",
    "## reduce_scatter_v ##": "forward",
    "my_exchange": "forward",  # of numbers, not under anything of the input
    "## all2all_data:kjt weights ##": "input",
    "## sparse_data_dist ##": "input",
}


def ranks(folder: Path, late: tuple[float, ...], world_size: int = 0, **sizes: tuple[int, ...]) -> list[Path]:
    """Traces of ranks that take 100 us, 200 us, ... forward and twice that backward, over three steps."""
    paths = []
    for rank, one_late in enumerate(late):
        trace = TraceBuilder(rank, world_size or len(late))
        for number in (5, 6, 7):
            wobble = 40.0 * (number == 6)  # which a median leaves out
            dims = sizes.get("dims", (24,) * len(late))[rank]
            step(trace, number, one_late, 100 * (rank + 1) + wobble, 200 * (rank + 1), dims)
        paths.append(trace.save(folder / f"rank{rank}.json.gz"))
    return paths


def test_the_last_to_arrive_does_not_wait_and_the_others_wait_for_it(tmp_path: Path) -> None:
    found = observe(ranks(tmp_path, late=(0, 300, 100), dims=(24, 48, 24)))
    assert [one.forward_ms for one in found.ranks] == pytest.approx([0.1, 0.2, 0.3])
    assert [one.backward_ms for one in found.ranks] == pytest.approx([0.2, 0.4, 0.6])
    assert found.waits_for == 1 and found.step_ms == 2.0
    for one, waits in zip(found.ranks, (0.3, 0.0, 0.2), strict=True):
        assert one.exchange_ms == pytest.approx({"forward": 0.05, "backward": 0.03, "input": 0.005, "other": None})
        assert one.waiting_ms == pytest.approx({"forward": waits, "backward": waits, "input": 0.0, "other": None})
    assert step_ms(found.phases, "sparse_dist") == pytest.approx(0.05 + 0.03 + 0.3 + 0.6)  # indices beside kernels
    assert step_ms(found.phases, "base") == pytest.approx(0.005 + 0.3 + 0.05 + 0.03 + 0.6)
    assert found.balance is not None
    assert found.balance.forward_ms == pytest.approx(0.1)  # 0.3 above the mean of 0.2
    assert found.balance.backward_ms == pytest.approx(0.2)
    assert found.balance.exchanges_ms == pytest.approx(0.08 * (1 - 32 / 48))
    assert found.notes == () and found.missing_ranks == ()


def test_ranks_without_a_trace_are_named_and_one_alone_has_its_waiting_in_its_exchanges(tmp_path: Path) -> None:
    found = observe(ranks(tmp_path, late=(0, 200), world_size=4))
    assert found.missing_ranks == (2, 3) and found.waits_for == 1
    assert "Ranks without a trace: 2, 3 of 4." in found.notes[0]
    found = observe(ranks(tmp_path, late=(0, 200))[:1])
    (only,) = found.ranks
    assert only.waiting_ms is None and only.exchange_ms["forward"] == pytest.approx(0.35)
    assert found.waits_for is None and found.balance is None and "communication includes waiting" in found.notes[0]


def test_without_shapes_there_are_times_and_a_word_about_recording(tmp_path: Path) -> None:
    trace = TraceBuilder(shapes=False)
    step(trace, 5, 0, 100, 200)
    found = observe([trace.save(tmp_path / "trace.json")])
    (only,) = found.ranks
    assert (only.num_tables, only.sum_of_dims, only.forward_ms, only.backward_ms) == (None, None, 0.1, 0.2)
    assert only.exchange_ms["forward"] > 0 and only.exchange_ms["backward"] > 0 and only.exchange_ms["input"] > 0
    (note,) = found.notes
    assert "unknown without record_shapes=True" in note and "evenshard observe --help" in note


def test_data_parallel_tables_are_left_out(tmp_path: Path) -> None:
    trace = TraceBuilder()
    step(trace, 5, 0, 100, 200)
    trace.op("fbgemm::dense_embedding_codegen_lookup_function", 50_150, 10)
    trace.kernel(LOOKUP_KERNEL, 50_155, 50_300, 77)
    (only,) = observe([trace.save(tmp_path / "trace.json")]).ranks
    assert only.forward_ms == 0.1 and only.num_tables == 2


def test_traces_of_one_training_alone_are_compared_whose_ranks_exchange_alike(tmp_path: Path) -> None:
    first, second = ranks(tmp_path, late=(0, 200))

    def saved(name: str, rank: int, world_size: int, number: int = 5) -> Path:
        trace = TraceBuilder(rank, world_size)
        step(trace, number, 0, 100, 100)
        return trace.save(tmp_path / name)

    with pytest.raises(BadFile, match="its run has 3 ranks"):
        observe([first, second, saved("other.json", 2, 3)])
    with pytest.raises(BadFile, match=r"it is from rank 0, like .*rank0"):
        observe([first, first])
    with pytest.raises(BadInput, match=r"no training step .* in common"):
        observe([first, saved("later.json", 1, 2, 9)])
    without_steps = TraceBuilder()
    without_steps.lookup(0)
    with pytest.raises(BadFile, match=r"Call prof.step\(\)"):
        observe([without_steps.save(tmp_path / "steps.json")])
    first, _ = ranks(tmp_path, late=(0, 200))
    more = TraceBuilder(1, 2)
    for number in (5, 6, 7):
        step(more, number, 0, 100, 100)
        more.exchange("All2All_Pooled_Req", 10_000.0 * number + 150, 10_000.0 * number + 500, 10)
    found = observe([first, more.save(tmp_path / "more.json")])
    assert found.waits_for is None and "different collectives" in found.notes[0]


def test_a_training_on_a_gpu_whose_kernels_were_not_recorded_is_not_one_on_the_cpu(tmp_path: Path) -> None:
    """As a profiler with ``activities=[ProfilerActivity.CPU]`` writes it."""
    trace, path = TraceBuilder(), tmp_path / "trace.json"
    step(trace, 5, 0, 100, 200)
    trace.events = [event for event in trace.events if event["cat"] not in ("kernel", "cuda_runtime")]
    hints = {"backend": "", "rank": 0, "world_size": 1}
    for changes, gpu in (
        ({"deviceProperties": []}, "unknown GPU"),  # NCCL says so
        ({"distributedInfo": hints}, "NVIDIA H200"),  # the machine has GPUs, and no operator is one of the CPU
    ):
        path.write_text(json.dumps({**trace.document(), **changes}))
        with pytest.raises(BadFile, match=rf"from a GPU \({gpu}\), but has no GPU kernels.*ProfilerActivity.CUDA"):
            observe([path])


def test_what_a_trace_does_not_show_is_not_zero(tmp_path: Path) -> None:
    """A step of one rank without a backward pass and without collectives."""
    trace = TraceBuilder()
    trace.step(5, 0, 2000)
    trace.lookup(100)
    trace.kernel(LOOKUP_KERNEL, 105, 200, 300)
    found = observe([trace.save(tmp_path / "trace.json")])
    (only,) = found.ranks
    assert (only.forward_ms, only.backward_ms) == (0.3, None) and set(only.exchange_ms.values()) == {None}
    assert only.compute_ms == 0.3 and only.all_waiting_ms is None
    assert found.unseen == ("rank 0's backward",), "one rank exchanges nothing"
    row = observation_text(found, None).splitlines()[2]
    assert "0.000" not in row and row.count("not seen") == 6


def test_each_all_to_all_is_known_by_what_started_it(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number, name in enumerate(KIND_OF_OPERATOR):
        of_rows = {"name": "nccl:_reduce_scatter_base"} if "educe" in name else {}
        trace.exchange(name, 100.0 * number + 10, 5000 + 100.0 * number, 7, **of_rows)
    trace.exchange("my_exchange", 710, 5800, 7, kind="long int")
    trace.op("c10d::allreduce_", 800, 20)
    trace.kernel(NCCL_KERNEL, 805, 6000, 9, MAIN)
    trace.exchange("FSDP::post_backward_reshard", 850, 6050, 7, name="nccl:_reduce_scatter_base")
    trace.kernel("gemm", 900, 6100, 9, MAIN)
    trace.op("aten::mm", 895, 20)
    (read,) = read_traces(trace.save(tmp_path / "trace.json"))
    assert [one.kind for one in find_collectives(read)] == [*KIND_OF_OPERATOR.values(), "input", "other", "other"]


def test_gloo_works_off_the_exchanges_of_rows_and_columns_in_order(tmp_path: Path) -> None:
    """With an all-reduce it reduces and scatters; the last collective ends after the recording."""
    trace = TraceBuilder(0, 2)
    trace.step(5, 0, 2000)
    trace.lookup(10)
    trace.op("autograd::engine::evaluate_function: ReduceScatterBase_WaitBackward", 390, 200)
    for around, queued, name, works in (
        ("## all2all_data:kjt values ##", 100, "alltoall_base_", "all_to_all"),
        ("All2All_Pooled_Req", 200, "alltoall_base_", "all_to_all"),
        ("ReduceScatterBase_Req", 300, "_reduce_scatter_base_", "all_reduce"),
        ("## ReduceScatterBase_bwd (all_gather) ##", 400, "_allgather_base_", "all_gather"),
        ("All2All_Pooled_WaitBackward", 500, "alltoall_base_", "all_to_all"),
        ("DistributedDataParallel.backward", 600, "allreduce_", "all_reduce"),
    ):
        trace.on_gloo(around, name, queued, queued + 1000, queued / 100, works)
    trace.op("c10d::allreduce_", 700, 5)
    document = {**trace.document(), "deviceProperties": []}
    document["distributedInfo"]["backend"] = "gloo"
    (tmp_path / "trace.json").write_text(json.dumps(document))
    (read,) = read_traces(tmp_path / "trace.json")
    found = [(one.kind, one.duration_us) for one in find_collectives(read)]
    assert found == [("input", 1), ("forward", 2), ("forward", 3), ("backward", 4), ("backward", 5), ("other", 6)]


def test_a_step_waits_at_most_as_long_as_it_takes(tmp_path: Path) -> None:
    """Exchanges that overlap wait at the same time, and one may end in the next step."""
    paths = []
    for rank, late in enumerate((0, 1500)):
        trace = TraceBuilder(rank, 2)
        for number in (5, 6, 7):
            at = 2000.0 * number
            trace.step(number, at, 2000)
            trace.lookup(at + 20)
            for name in ("All2All_Pooled_Req", "ReduceScatterBase_Req", "ReduceScatterV_Req"):
                trace.exchange(name, at + 100, at + 400 + late, 2500 - late)
        paths.append(trace.save(tmp_path / f"rank{rank}.json"))
    waiting, last = observe(paths).ranks
    assert waiting.waiting_ms is not None and waiting.waiting_ms["forward"] == pytest.approx(4.5)
    assert waiting.all_waiting_ms == pytest.approx(1.5) and last.all_waiting_ms == 0
