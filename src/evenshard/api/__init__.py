"""Functions that users call, ``place`` and ``what_if``, and the code of a served model."""
