"""``EvenshardPlanner``, a drop-in replacement for TorchRec's ``EmbeddingShardingPlanner``."""
