"""ShardBench: planners of sharding plans on public models and simulated machines, re-costed by several oracles."""
