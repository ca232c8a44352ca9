"""Measurement of placements with real FBGEMM kernels or by simulation, and storage of the measured costs.

``python -m evenshard.measure`` needs only torch, NumPy and FBGEMM, so that it runs on a bare GPU machine.
"""
