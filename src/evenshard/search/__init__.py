"""A legal way to shard tables where memory is tight, or a proof that there is none. Costs do not matter here."""
