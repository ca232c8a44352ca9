"""DreamShard (NeurIPS 2022): a cost network, and a policy trained on its predictions."""
