"""AutoShard (KDD 2022): a cost network for shards, and a policy that balances them, trained with IMPALA."""
