"""Train a network with FSDP2 on two ranks and save it with torch.distributed.checkpoint."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    generator = torch.Generator().manual_seed(1 + rank)
    x = torch.randn(320, 8, generator=torch.Generator().manual_seed(0))
    y = (x[:, :1] * x[:, 1:2]).sin()
    for step in range(1, given.steps + 1):
        chosen = torch.randint(0, 256, (32,), generator=generator)
        loss = nn.functional.mse_loss(model(x[chosen]), y[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(given.pause)
        if step % 10 == 0:
            with torch.no_grad():
                value = nn.functional.mse_loss(model(x[256:]), y[256:])
            if rank == 0:
                print(
                    f"step {step:,} | train {loss.item():.4f} | val_loss {value.item():.5f}",
                    flush=True,
                )
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": step}
            dcp.save(state, checkpoint_id=os.path.join("checkpoints", f"step_{step}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
