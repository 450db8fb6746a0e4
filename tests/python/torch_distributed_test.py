#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over the backend espalier_host, on every rank.

Usage: espalier run -n N -- torch_distributed_test.py NAME...    (operations and groups want 3 ranks, the others 2)

Data: element i of rank r is a small number computed from both, so that sums are exact in every dtype and a swapped, missing or
doubled contribution shows.
"""
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
warnings.filterwarnings("ignore", category=FutureWarning)  # of newer names for the same operations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import espalier_torch

FLOATING = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
DTYPES = [*FLOATING, *INTEGERS, torch.bool]
COUNTS = [0, 1, 7, 1003]
OPS = {"SUM": lambda a, b: a + b, "PRODUCT": lambda a, b: a * b, "MIN": torch.minimum, "MAX": torch.maximum,
       "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def data(rank, count, dtype, first=0):
    values = (torch.arange(first, first + count) * 7 + rank * 3).remainder(4)
    return (values.remainder(2) if dtype == torch.bool else values).to(dtype)


def check(got, expected, what):
    if got.shape != expected.shape or got.dtype != expected.dtype or not torch.equal(got, expected):
        raise AssertionError(f"rank {dist.get_rank()}: {what}: {got} instead of {expected}")


def reductions(dtype):
    """The operations that make sense, with the function of all contributions."""
    for name, pair in OPS.items():
        if dtype in FLOATING and name.startswith("B"):
            continue

        def of_all(parts, pair=pair):
            wide = torch.float64 if dtype in FLOATING else torch.int64
            result = parts[0].to(wide)
            for part in parts[1:]:
                result = pair(result, part.to(wide))
            return result.to(dtype)
        yield name, getattr(dist.ReduceOp, name), of_all
    if dtype in FLOATING:
        yield "AVG", dist.ReduceOp.AVG, lambda parts: sum(part.double() for part in parts).to(dtype) / len(parts)


def operations():
    rank, size = dist.get_rank(), dist.get_world_size()
    cases = 0
    for dtype in DTYPES:
        for count in COUNTS:
            what = f"of {count} {dtype}"
            mine = data(rank, count, dtype)
            everyone = [data(other, count, dtype) for other in range(size)]
            columns = [torch.cat([data(other, count, dtype, first=i * count) for i in range(size)]) for other in range(size)]

            for name, op, of_all in reductions(dtype):
                tensor = mine.clone()
                dist.all_reduce(tensor, op)
                check(tensor, of_all(everyone), f"all_reduce {name} {what}")
                tensor = mine.clone()
                dist.reduce(tensor, 1, op)
                check(tensor, of_all(everyone) if rank == 1 else mine, f"reduce {name} {what}")
                tensor = torch.empty(count, dtype=dtype)
                dist.reduce_scatter_tensor(tensor, columns[rank], op)
                check(tensor, of_all(columns)[rank * count:(rank + 1) * count], f"reduce_scatter_tensor {name} {what}")
                tensor = torch.empty(count, dtype=dtype)
                dist.reduce_scatter(tensor, [columns[rank][i * count:(i + 1) * count] for i in range(size)], op)
                check(tensor, of_all(columns)[rank * count:(rank + 1) * count], f"reduce_scatter {name} {what}")
                cases += 4

            tensor = mine.clone()
            dist.broadcast(tensor, 2)
            check(tensor, everyone[2], f"broadcast {what}")
            parts = [torch.empty(count, dtype=dtype) for _ in range(size)]
            dist.all_gather(parts, mine)
            check(torch.cat(parts), torch.cat(everyone), f"all_gather {what}")
            uneven = [torch.empty(count * other, dtype=dtype) for other in range(size)]
            dist.all_gather(uneven, data(rank, count * rank, dtype))
            for other in range(size):
                check(uneven[other], data(other, count * other, dtype), f"all_gather of different sizes {what}")
            tensor = torch.empty(size * count, dtype=dtype)
            dist.all_gather_into_tensor(tensor, mine)
            check(tensor, torch.cat(everyone), f"all_gather_into_tensor {what}")
            tensor = torch.empty(size * count, dtype=dtype)
            dist.all_to_all_single(tensor, columns[rank])
            received = torch.cat([column[rank * count:(rank + 1) * count] for column in columns])
            check(tensor, received, f"all_to_all_single {what}")
            parts = [torch.empty(count, dtype=dtype) for _ in range(size)]
            dist.all_to_all(parts, list(columns[rank].split(count) if count else [mine] * size))
            check(torch.cat(parts), received, f"all_to_all {what}")
            # Member j gets (j + 1) * count elements from each.
            tensor = torch.empty(size * (rank + 1) * count, dtype=dtype)
            dist.all_to_all_single(tensor, data(rank, 6 * count, dtype), [(rank + 1) * count] * size, [count, 2 * count, 3 * count])
            start = (rank * (rank + 1) // 2) * count
            check(tensor, torch.cat([data(other, 6 * count, dtype)[start:start + (rank + 1) * count] for other in range(size)]),
                  f"all_to_all_single with splits {what}")
            parts = [torch.empty(count, dtype=dtype) for _ in range(size)] if rank == 1 else None
            dist.gather(mine, parts, 1)
            if rank == 1:
                check(torch.cat(parts), torch.cat(everyone), f"gather {what}")
            tensor = torch.empty(count, dtype=dtype)
            dist.scatter(tensor, [data(10 + other, count, dtype) for other in range(size)] if rank == 2 else None, 2)
            check(tensor, data(10 + rank, count, dtype), f"scatter {what}")
            tensor = torch.empty(count, dtype=dtype)
            sent = dist.isend(mine, (rank + 1) % size, tag=count)
            dist.recv(tensor, (rank - 1) % size, tag=count)
            sent.wait()
            check(tensor, everyone[(rank - 1) % size], f"send and recv {what}")
            cases += 10

    # Not contiguous, asynchronous, several at a time.
    matrix = torch.arange(12.0).view(3, 4).t() + rank
    dist.all_reduce(matrix)
    check(matrix, 3 * torch.arange(12.0).view(3, 4).t() + 3, "all_reduce of a transposed tensor")
    tensors = [torch.full((1000,), float(rank + i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for i, tensor in enumerate(tensors):
        check(tensor, torch.full((1000,), float(3 + 3 * i)), "asynchronous all_reduce")
    tensor = torch.ones(5)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    check(tensor, torch.full((5,), 3.0), "all_reduce that is_completed")
    doubled = dist.all_reduce(torch.ones(5), async_op=True).get_future().then(lambda future: future.value()[0] * 2).wait()
    check(doubled, torch.full((5,), 6.0), "a future's continuation")
    requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % size),
                                       dist.P2POp(dist.irecv, tensor[:3], (rank - 1) % size)])
    for request in requests:
        request.wait()
    check(tensor[:3], torch.full((3,), float((rank - 1) % size)), "batch_isend_irecv")
    dist.barrier()
    expected = len(COUNTS) * (4 * (len(FLOATING) * 5 + (len(INTEGERS) + 1) * 7) + 10 * len(DTYPES))
    assert cases == expected, (cases, expected)


def groups():
    """Parts of the world, in different orders on different ranks where they share no two."""
    rank = dist.get_rank()
    first, last, twin = dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 1, 2])
    for _ in range(20):
        for group, members in [(first, [0, 1]), (last, [1, 2]), (twin, [0, 1, 2])]:
            if rank in members:
                tensor = torch.tensor([float(rank)])
                dist.all_reduce(tensor, group=group)
                check(tensor, torch.tensor([float(sum(members))]), f"all_reduce in {members}")
        tensor = torch.tensor([rank])
        dist.broadcast(tensor, 2)
        check(tensor, torch.tensor([2]), "broadcast")
    ours, theirs = torch.ones(3), torch.full((3,), 10.0)
    order = [(ours, None), (theirs, twin)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in (order if rank else order[::-1])]
    for work in works:
        work.wait()
    check(ours, torch.full((3,), 3.0), "all_reduce in the world")
    check(theirs, torch.full((3,), 30.0), "all_reduce in its twin")


def model():
    """Layers of small whole numbers, so that gradients are exact."""
    layers = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2)).double()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.arange(parameter.numel()).remainder(5).sub(2).view(parameter.shape))
    return layers


def data_parallel():
    rank, size = dist.get_rank(), dist.get_world_size()
    batches = [(torch.arange(32.0).double() + step).remainder(7).sub(3).view(8, 4) for step in range(3)]
    alone, shared = model(), model()
    if rank == 1:  # rank 0's values are what counts
        with torch.no_grad():
            for parameter in shared.parameters():
                parameter.add_(1)
    parallel = DistributedDataParallel(shared, bucket_cap_mb=0.0001)
    for step, batch in enumerate(batches):
        for layers, rows in [(alone, batch), (parallel, batch.chunk(size)[rank])]:
            layers.zero_grad()
            layers(rows).square().sum(1).mean().backward()
        for (name, expected), got in zip(alone.named_parameters(), shared.parameters(), strict=True):
            if step == 0:
                check(got.grad, expected.grad, f"gradient of {name}")
            else:  # no more whole numbers
                torch.testing.assert_close(got.grad, expected.grad, rtol=1e-12, atol=1e-9)
            with torch.no_grad():
                expected.sub_(expected.grad, alpha=1e-3)
                got.sub_(got.grad, alpha=1e-3)
    with parallel.no_sync():
        parallel(batches[0]).sum().backward()
    parallel(batches[0].chunk(size)[rank]).sum().backward()


def error_of(action):
    try:
        action()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("expected an error")


def refusals():
    """The last one: it ends with an error of all ranks."""
    tensor = torch.ones(2)
    for part, action in [
            ("recvAnysource on backend 'espalier' of group 'world': there is no such operation; there are allreduce,",
             lambda: dist.recv(tensor)),
            ("has dtype UInt16; expected float64,", lambda: dist.broadcast(torch.ones(2, dtype=torch.uint16), 0)),
            ("mean needs a floating dtype", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG)),
            ("bit_ operations need an integer", lambda: dist.all_reduce(tensor, dist.ReduceOp.BXOR))]:
        text = error_of(action)
        assert part in text, text
    dist.barrier()  # nothing was sent
    # Different calls on different ranks: both are named, at once.
    text = error_of(lambda: (dist.all_reduce(tensor) if dist.get_rank() == 0 else dist.broadcast(tensor, 1), dist.barrier()))
    assert "all_reduce(sum, float32 x 2)" in text and "broadcast(float32 x 2, root 1)" in text, text


def deadline():
    group = dist.new_group(timeout=timedelta(milliseconds=300))
    if dist.get_rank() == 0:
        start = time.monotonic()
        text = error_of(lambda: dist.recv(torch.ones(2), 1, group=group))
        assert "timed out after" in text and "rank 1" in text, text
        assert 0.25 < time.monotonic() - start < 5, time.monotonic() - start
    dist.barrier()  # the world has memory of its own and is as it was


def without_launcher():
    """A rank alone, and the ranks meeting at a file."""
    rank, size = dist.get_rank(), dist.get_world_size()
    file = os.path.join(tempfile.gettempdir(), f"espalier-{os.environ['ESPALIER_JOB']}")
    dist.destroy_process_group()
    dist.init_process_group("espalier_host", init_method=f"file://{file}.{rank}", rank=0, world_size=1)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    check(tensor, torch.ones(2), "all_reduce alone")
    dist.destroy_process_group()
    dist.init_process_group("espalier_host", init_method=f"file://{file}", rank=rank, world_size=size)
    dist.all_reduce(tensor)
    check(tensor, torch.full((2,), 2.0), "all_reduce")


def main():
    torch.set_num_threads(1)
    espalier_torch.init_process_group(timedelta(seconds=60))
    assert dist.get_backend() == "espalier_host" and dist.get_world_size() == int(os.environ["ESPALIER_WORLD_SIZE"])
    tests = {"operations": operations, "groups": groups, "data_parallel": data_parallel, "deadline": deadline,
             "without_launcher": without_launcher, "refusals": refusals}
    for name in sys.argv[1:]:
        tests[name]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
