"""What placements cost: measured on real kernels or simulated, and recorded with their provenance.

Imports nothing beyond the standard library, numpy and torch (FBGEMM inside functions; pydantic where a record is read,
PyYAML where it is a profile), so that a bare GPU box can measure.
"""
