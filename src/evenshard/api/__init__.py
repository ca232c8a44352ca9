"""What users call: ``place``, ``what_if`` and ``load_answer``, and the code of a served model."""
