# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel over Espalier's shared memory: two ranks fit a line.

    PYTHONPATH=build/release/python espalier run -n 2 -- build/venv/bin/python examples/05_torch_ddp.py
"""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import espalier_torch

espalier_torch.init_process_group()
torch.manual_seed(dist.get_rank())  # every rank draws rows of its own
line = torch.nn.Linear(1, 1)
model = DistributedDataParallel(line)  # gives all ranks the weights of rank 0
for _ in range(200):
    x = torch.randn(16, 1)
    model.zero_grad()
    (model(x) - (3 * x + 1)).square().mean().backward()  # gradients are the mean over all ranks
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad

slopes = [torch.empty(1, 1) for _ in range(dist.get_world_size())]
dist.all_gather(slopes, line.weight.detach())
if dist.get_rank() == 0:
    print(f"y = {line.weight.item():.3f} x + {line.bias.item():.3f}, the same on {len(slopes)} ranks:",
          all(torch.equal(slope, slopes[0]) for slope in slopes))
dist.destroy_process_group()
