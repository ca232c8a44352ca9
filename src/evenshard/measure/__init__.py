"""Measured costs of placements: FBGEMM kernels, ranks, journals, calibration, traces, and cost datasets.

``python -m evenshard.measure`` needs torch, NumPy and FBGEMM alone, so that a bare GPU machine can measure.
"""
