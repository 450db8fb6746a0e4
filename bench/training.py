#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of the reference GPT: `espalier train` against plain PyTorch (one rank) and DistributedDataParallel over
Gloo (data=2), in alternating rounds. Median over the steps of a run (the first 5 left out), median over rounds, and the ratio.

Usage: training.py ESPALIER PYTHON --text FILE... [--rounds 3] [--steps 60]; PYTHON can import torch (bench/peers/README.md).
"""
import json
import os
import statistics
import subprocess
import tempfile

import train_runs

parser = train_runs.parser(__doc__, steps=60)
parser.add_argument("python")
arguments = parser.parse_args()
peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "gpt.py")


def ours(layout, micro_batches):
    with tempfile.TemporaryDirectory() as out:
        subprocess.run(train_runs.command(arguments, out, layout, "--micro-batches", str(micro_batches)), check=True, capture_output=True)
        return train_runs.tokens_per_s(train_runs.metrics(out))


def theirs(launcher):
    done = subprocess.run([arguments.python, *launcher, peer, "--steps", str(arguments.steps), "--text", *arguments.text], check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])["tokens_per_s"]


cases = {
    "one rank": (lambda: ours("data=1", 1), lambda: theirs([])),
    "data=2": (lambda: ours("data=2", 1), lambda: theirs(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])),
}
print(f"{arguments.rounds} rounds of {arguments.steps} steps, tokens per second")
print(f"{'':10} {'espalier':>10} {'PyTorch':>10} {'ratio':>7}")
for name, (run_ours, run_theirs) in cases.items():
    ours_speed, their_speed = train_runs.in_turns(arguments.rounds, {"ours": run_ours, "theirs": run_theirs}).values()
    ratio = statistics.median(a / b for a, b in zip(ours_speed, their_speed))
    print(f"{name:10} {statistics.median(ours_speed):>10.0f} {statistics.median(their_speed):>10.0f} {ratio:>7.2f}", flush=True)
