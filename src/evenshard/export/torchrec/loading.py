"""Is TorchRec there? It is imported here first, so that its imports' warnings are dealt with in one place."""

from __future__ import annotations

import warnings

from evenshard.errors import BadConfig
from evenshard.sharders.torchrec_planner import REMEDY


def require_torchrec() -> None:
    """Imports what the export uses of TorchRec; later imports of it cost nothing.

    Raises:
        BadConfig: if TorchRec is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated modules of FBGEMM that TorchRec imports
            import torchrec.distributed.model_parallel
            import torchrec.distributed.planner  # noqa: F401
    except ImportError as error:
        raise BadConfig(f"TorchRec cannot be imported ({error}). {REMEDY}") from None
