"""How long `evenshard what-if` takes for 12 machines: 26 tables on 3 kinds of hardware and 4 numbers of devices.

python -m benchmarks.scripts.what_if_speed
"""

from __future__ import annotations

import sys
import time

import torch

import evenshard

HARDWARE, DEVICES = ("h100", "h200", "a100"), (8, 16, 32, 64)


def main() -> int:
    """Prints wall and processor time, the latter for machines on which others work too."""
    torch.set_num_threads(1)
    wall_s, processor_s = time.perf_counter(), time.process_time()
    found = evenshard.what_if("mlperf_dlrm_v2", HARDWARE, DEVICES)
    wall_s, processor_s = time.perf_counter() - wall_s, time.process_time() - processor_s
    print(f"{len(found.options)} machines: {wall_s:.1f} s, {processor_s:.1f} s of one processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
