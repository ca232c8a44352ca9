"""evenshard learns where to put a recommender model's embedding tables.

The data flows one way, and the modules are floors of one house (a module imports only
from lower floors; import-linter holds it)::

    tables -> tasks -> placements to try -> measured costs -> cost network -> policy -> placement -> report
                          ^                                                     |
                          +------------------- next round ----------------------+
"""

__version__ = "0.1.0"
