"""Train a masked language model whose sequences are split over processes.

    torchrun --standalone --nproc-per-node 2 examples/sequence_parallel.py
    torchrun --standalone --nproc-per-node 4 examples/sequence_parallel.py 2    # two processes for each sequence

The texts are one word each, another one in each text, so what stands behind a mask is known only from the rest.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import linformer_kit as lk

N, BATCH, VOCABULARY, MASK, UPDATES = 4096, 4, 13, 4, 60


def make_batch(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (BATCH, 1), generator=generator).repeat(1, N)
    hidden = torch.rand(BATCH, N, generator=generator) < 0.15
    return {"input_ids": ids.masked_fill(hidden, MASK), "labels": ids.masked_fill(~hidden, -100)}


def main() -> None:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    processes, device = dist.get_world_size(), "cuda" if cuda else "cpu"
    split = int(sys.argv[1]) if len(sys.argv) > 1 else processes  # processes for each sequence
    mesh = init_device_mesh(device, (processes // split, split), mesh_dim_names=("data", "sequence"))
    torch.manual_seed(dist.get_rank())  # every process draws its own dropout; the parameters are the first one's

    config = lk.LinformerConfig(
        vocab_size=VOCABULARY, max_position_embeddings=N, projected_dim=64, hidden_size=64, num_attention_heads=2,
        num_hidden_layers=2, intermediate_size=128, sharing="layerwise", norm_first=True,
    )  # fmt: skip
    model = lk.LinformerForMaskedLM(config).to(device).train()
    parallel = lk.SequenceParallel(model, mesh)
    wrapped = DistributedDataParallel(model, process_group=mesh["data"].get_group()) if split < processes else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for update in range(UPDATES):
        # The processes of one sequence have the same batch, those of another one another batch.
        batch = make_batch(update * mesh["data"].size() + mesh["data"].get_local_rank())
        piece = parallel.shard({name: ids.to(device) for name, ids in batch.items()})
        loss = wrapped(**piece, num_items_in_batch=parallel.count_labels(piece["labels"])).loss
        loss.backward()
        parallel.reduce_gradients()
        parallel.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss := loss.detach())  # sum over a sequence, mean over the others
        if dist.get_rank() == 0 and update % 10 == 9:
            print(f"update {update + 1}: loss {loss.item() / mesh['data'].size():.3f}", flush=True)

    state = parallel.full_state_dict()
    if dist.get_rank() == 0:
        model.save_pretrained("sequence-parallel-model", state_dict=state)  # an ordinary model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
