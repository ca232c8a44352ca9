"""TorchRec's own planner with evenshard's costs: an estimator fitted to them, as a file that needs no evenshard.

::

    export_estimator("estimator.py", "simulated:h100")         # evenshard export-estimator
    estimator = load_estimator("estimator.json", topology)     # of a .json file; a .py file is imported as it stands
    EvenshardPerfModel(topology, "simulated:h100")             # with evenshard at hand: rates whole plans by its costs
"""

from __future__ import annotations

from evenshard.torchrec.estimator.files import export_estimator, load_estimator
from evenshard.torchrec.estimator.perf_model import EvenshardPerfModel

__all__ = ["EvenshardPerfModel", "export_estimator", "load_estimator"]
