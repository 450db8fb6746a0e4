#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of the reference GPT: `espalier train` against plain PyTorch (one rank) and DistributedDataParallel over
Gloo (data=2), in alternating rounds. Median over the steps of a run (the first 5 left out), median over rounds, and the ratio.

Usage: training.py ESPALIER PYTHON --text FILE... [--rounds 3] [--steps 60]; PYTHON can import torch (bench/peers/README.md).
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("espalier")
parser.add_argument("python")
parser.add_argument("--text", nargs="+", required=True)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=60)
arguments = parser.parse_args()
peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "gpt.py")


def ours(layout, micro_batches):
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([arguments.espalier, "train", "--layout", layout, "--micro-batches", str(micro_batches), "--steps", str(arguments.steps),
                        "--sample", "0", "--save-every", "100000", "--out", out, "--text", *arguments.text], check=True, capture_output=True)
        with open(os.path.join(out, "metrics.csv")) as metrics:
            return statistics.median([float(row["tokens_per_s"]) for row in csv.DictReader(metrics)][5:])


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
    pairs = [(run_ours(), run_theirs()) for _ in range(arguments.rounds)]
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{name:10} {statistics.median(a for a, _ in pairs):>10.0f} {statistics.median(b for _, b in pairs):>10.0f} {ratio:>7.2f}", flush=True)
