# SPDX-License-Identifier: Apache-2.0
"""The reference GPT in plain PyTorch: the peer that Espalier's training is measured against.

Prints one line per --log-every steps and a closing line of JSON: loss (mean of the last 20 steps), tokens/s (median
over steps, the first 5 left out). See README.md.
"""
import argparse
import json
import math
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(hidden, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, context, vocab=256):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if name.endswith(("out.weight", "down.weight")) else 0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def learning_rate(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def samples(text, args):
    """Global batches [batch, context + 1]: windows of the text in a new random order each epoch."""
    num_windows = (len(text) - 1) // args.context
    generator = torch.Generator().manual_seed(args.seed)
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < args.batch:
            order = torch.cat([order, torch.randperm(num_windows, generator=generator)])
        rows, order = order[: args.batch], order[args.batch :]
        yield torch.stack([text[i * args.context : (i + 1) * args.context + 1] for i in rows.tolist()]).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16, help="global, in sequences")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--micro-batches", type=int, default=1, help="gradient accumulation on each rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=50)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if world > 1 else 0
    if args.batch % (world * args.micro_batches):
        raise SystemExit(f"batch {args.batch} does not divide into {world} ranks x {args.micro_batches} micro-batches")

    content = b"".join(open(path, "rb").read() for path in args.text)
    text = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    torch.manual_seed(args.seed)
    model = Gpt(args.layers, args.hidden, args.heads, args.context)
    trained = DistributedDataParallel(model) if world > 1 else model
    matrices, others = ([one for one in model.parameters() if (one.dim() >= 2) == wanted] for wanted in (True, False))
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0}], lr=args.lr, betas=(0.9, 0.95),
                                  weight_decay=args.weight_decay)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(text)} bytes, {world} ranks", flush=True)

    losses, seconds = [], []
    for step, batch in zip(range(args.steps), samples(text, args)):
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        optimizer.zero_grad(set_to_none=True)
        parts = batch.chunk(world)[rank].chunk(args.micro_batches)
        step_loss = torch.zeros(())
        for number, part in enumerate(parts):
            if world > 1:
                trained.require_backward_grad_sync = number == len(parts) - 1
            loss = functional.cross_entropy(trained(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten()) / len(parts)
            loss.backward()
            step_loss += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        if world > 1:
            dist.all_reduce(step_loss)
        losses.append(step_loss.item() / world)
        seconds.append(time.perf_counter() - begin)
        if rank == 0 and (step % args.log_every == 0 or step == args.steps - 1):
            print(f"step {step}  loss {losses[-1]:.4f}  {args.batch * args.context / seconds[-1]:.0f} tokens/s", flush=True)
    if rank == 0:
        tail = losses[-20:]
        print(json.dumps({
            "ranks": world, "threads": args.threads, "steps": args.steps,
            "loss": sum(tail) / len(tail),
            "tokens_per_s": args.batch * args.context / statistics.median(seconds[5:] or seconds),
            "total_s": sum(seconds),
        }))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
