#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo's training, 4 ranks as pipe=2,data=2, over several backends in alternating rounds: tokens per second (median over the
steps of a run, the first 5 left out), seconds that rank 0 waited for others, processor time of all ranks for a step (without the
first 5) beside that of one rank with the same micro-batches, and whether the losses are the same.

Usage: backends.py ESPALIER --text FILE... [--backends host,gloo,mpi] [--rounds 3] [--steps 60]
"""
import re
import resource
import statistics
import subprocess
import tempfile

import train_runs

parser = train_runs.parser(__doc__, steps=60)
parser.add_argument("--backends", default="host,gloo,mpi")
arguments = parser.parse_args()


def train(backend, steps, layout="pipe=2,data=2", micro_batches=4):
    launcher = [arguments.espalier, "run", "--backend", "mpi", "-n", "4", "--"] if backend == "mpi" else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as out:
        training = train_runs.command(arguments, out, layout, "--micro-batches", str(micro_batches), "--backend", backend, steps=steps)
        done = subprocess.run([*launcher, *training], check=True, capture_output=True, text=True)
        rows = train_runs.metrics(out)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    waited = re.search(r"waited ([0-9.]+) s", done.stdout)
    return {"speed": train_runs.tokens_per_s(rows),
            "waited": float(waited[1]) if waited else 0.0,
            "losses": [row["loss"] for row in rows],
            "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def whole_run(backend, **layout):
    run = train(backend, arguments.steps, **layout)
    run["cpu_ms"] = 1e3 * (run["cpu"] - train(backend, 5, **layout)["cpu"]) / (arguments.steps - 5)
    return run


names = arguments.backends.split(",")
runs = train_runs.in_turns(arguments.rounds, {"one rank": lambda: whole_run("host", layout="data=1", micro_batches=8),
                                              **{name: lambda name=name: whole_run(name) for name in names}})
median = {name: {what: statistics.median(run[what] for run in runs[name]) for what in ("speed", "waited", "cpu_ms")} for name in runs}
first = median[names[0]]
reference = runs[names[0]][0]["losses"]
print(f"{'':<10}{'tokens/s':>10}{'waited, s':>11}{'CPU ms a step':>15}{'largest difference of a loss':>30}   {names[0]} is")
for name in runs:
    mine = median[name]
    line = f"{name:<10}{mine['speed']:>10.0f}{mine['waited']:>11.2f}{mine['cpu_ms']:>15.0f}"
    if name in names:
        difference = max(abs(got - want) for run in runs[name] for got, want in zip(run["losses"], reference, strict=True))
        added, first_added = (each["cpu_ms"] - median["one rank"]["cpu_ms"] for each in (mine, first))
        line += (f"{difference:>30.1e}   {first['speed'] / mine['speed']:.2f}x as fast, waits {mine['waited'] / first['waited']:.2f}x less, "
                 f"adds {added / first_added:.2f}x less processor time")
    print(line)
