"""Losses of TorchRec with rows of MEAN tables, beside those of the model in one piece: two gloo ranks on the CPU."""

import tempfile

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingEnv

LENGTHS = torch.tensor([1, 2, 3, 2, 4, 0])  # three samples of feature a, then of feature b
INDICES = torch.tensor([7, 0, 1, 2, 3, 4, 5, 6, 0, 1, 1, 7])
SHARES = torch.repeat_interleave(1 / LENGTHS.clamp(min=1), LENGTHS)  # 1/length of each lookup
ROWS, WHOLE = row_wise(compute_kernel="fused"), table_wise(rank=1, compute_kernel="fused")
FUSED = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.5}
CASES = {
    "MEAN, a by rows beside b whole": (PoolingType.MEAN, {"a": ROWS, "b": WHOLE}),
    "MEAN, a and b by rows": (PoolingType.MEAN, {"a": ROWS, "b": ROWS}),
    "SUM with weights of 1/length, a by rows beside b whole": (PoolingType.SUM, {"a": ROWS, "b": WHOLE}),
}


def losses(model, weights, optimizer):
    features, found = KeyedJaggedTensor(["a", "b"], INDICES, weights, lengths=LENGTHS), []
    for _ in range(3):
        found.append((model(features).values() - 1).square().mean())
        found[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return [round(loss.item(), 4) for loss in found]


def train(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for name, (pooling, types) in CASES.items():
        shares = SHARES if pooling is PoolingType.SUM else None
        tables = [EmbeddingBagConfig(8, 4, name=name, feature_names=[name], pooling=pooling) for name in "ab"]
        whole = EmbeddingBagCollection(tables=tables, is_weighted=shares is not None)
        for start, weight in enumerate(whole.parameters()):
            weight.data = torch.linspace(start, start + 1, 32).sin().reshape(8, 4)
        plan = construct_module_sharding_plan(whole, types, local_size=2, world_size=2, device_type="cpu")
        env, weights = ShardingEnv.from_process_group(dist.group.WORLD), whole.state_dict()
        model = EmbeddingBagCollectionSharder(FUSED).shard(whole, plan, env, torch.device("cpu"))
        for key, value in model.state_dict().items():
            for shard in value.local_shards():
                shard.tensor.copy_(weights[key][shard.metadata.shard_offsets[0] :][: shard.metadata.shard_sizes[0]])
        expected = losses(whole, shares, torch.optim.SGD(whole.parameters(), FUSED["learning_rate"]))
        found = losses(model, shares, model.fused_optimizer)
        if rank == 0:
            print(f"{name}: {found}, in one piece {expected}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (folder,), nprocs=2)
