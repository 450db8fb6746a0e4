#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo's training, 4 ranks as pipe=2,data=2, over several backends in alternating rounds: tokens per second (median over the
steps of a run, the first 5 left out), seconds that rank 0 waited for others, and whether the losses are the same.

Usage: backends.py ESPALIER --text FILE... [--backends host,gloo,mpi] [--rounds 3] [--steps 60]
"""
import argparse
import csv
import os
import re
import statistics
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("espalier")
parser.add_argument("--text", nargs="+", required=True)
parser.add_argument("--backends", default="host,gloo,mpi")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=60)
arguments = parser.parse_args()


def train(backend):
    launcher = [arguments.espalier, "run", "--backend", "mpi", "-n", "4", "--"] if backend == "mpi" else []
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([*launcher, arguments.espalier, "train", "--layout", "pipe=2,data=2", "--backend", backend, "--steps",
                               str(arguments.steps), "--sample", "0", "--save-every", "100000", "--out", out, "--text", *arguments.text],
                              check=True, capture_output=True, text=True)
        with open(os.path.join(out, "metrics.csv")) as metrics:
            rows = list(csv.DictReader(metrics))
    waited = float(re.search(r"waited ([0-9.]+) s", done.stdout)[1])
    return statistics.median(float(row["tokens_per_s"]) for row in rows[5:]), waited, [float(row["loss"]) for row in rows]


names = arguments.backends.split(",")
runs = {name: [] for name in names}
for _ in range(arguments.rounds):
    for name in names:
        runs[name].append(train(name))
reference = runs[names[0]][0][2]
print(f"{'backend':<10}{'tokens/s':>10}{'waited, s':>11}{'largest difference of a loss':>30}   {names[0]} is")
for name in names:
    speed, waited = (statistics.median(run[i] for run in runs[name]) for i in (0, 1))
    difference = max(abs(got - want) for run in runs[name] for got, want in zip(run[2], reference, strict=True))
    first_speed, first_waited = (statistics.median(run[i] for run in runs[names[0]]) for i in (0, 1))
    print(f"{name:<10}{speed:>10.0f}{waited:>11.2f}{difference:>30.1e}   {first_speed / speed:.2f}x as fast, waits {waited / first_waited:.2f}x less")
