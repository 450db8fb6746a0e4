# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over Espalier's shared memory.

Importing this package registers the backend "espalier_host", for tensors on the CPU and ranks on one host:

    import torch.distributed as dist
    import espalier_torch

    dist.init_process_group("espalier_host")   # as with any backend: from torchrun's variables, a file, a store
    espalier_torch.init_process_group()        # the same, and under `espalier run`

Every process group has shared memory of its own, also those of dist.new_group.
"""
import os
from datetime import timedelta

import torch.distributed as dist

from ._host import make_backend

__all__ = ["init_process_group"]

dist.Backend.register_backend("espalier_host", make_backend, devices=["cpu"])


def init_process_group(timeout: timedelta = timedelta(minutes=5)) -> None:
    """torch.distributed's of this name, where the ranks of `espalier run` find each other, too.

    Blocks until all ranks are there. `timeout` is also that of every operation.
    """
    if "ESPALIER_RANK" not in os.environ:
        dist.init_process_group("espalier_host", timeout=timeout)
        return
    rank, size = int(os.environ["ESPALIER_RANK"]), int(os.environ["ESPALIER_WORLD_SIZE"])
    # Rank 0 serves the store at a socket that `espalier run` has opened.
    descriptor = os.environ.get("ESPALIER_STORE_FD")
    store = dist.TCPStore(
        os.environ["ESPALIER_MASTER_ADDR"], int(os.environ["ESPALIER_MASTER_PORT"]), size, rank == 0, timeout, wait_for_workers=False,
        multi_tenant=True, master_listen_fd=None if descriptor is None else os.dup(int(descriptor)))
    dist.init_process_group("espalier_host", store=dist.PrefixStore(os.environ["ESPALIER_JOB"], store), rank=rank,
                            world_size=size, timeout=timeout)
