"""What placements cost: measured on real kernels or simulated, and recorded with their provenance.

Imports nothing beyond the standard library, numpy and torch (FBGEMM inside functions; PyYAML where a profile is read),
so that a bare GPU box that has only torch can measure.
"""
