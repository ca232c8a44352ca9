"""Kineto traces of a training run with FBGEMM modules: times of the embedding tables on each rank."""

# Code that records, on every rank, a trace with all events that evenshard reads.
RECORDING = """\
import torch.distributed as dist
from torch.profiler import profile, schedule

def save(prof):
    prof.export_chrome_trace(f"trace_rank{dist.get_rank()}.json.gz")

steps = schedule(wait=10, warmup=2, active=10, repeat=1)
with profile(schedule=steps, record_shapes=True, on_trace_ready=save) as prof:
    for batch in batches:
        train_step(batch)
        prof.step()
"""
