"""``EvenshardPlanner``, in place of TorchRec's ``EmbeddingShardingPlanner``."""
