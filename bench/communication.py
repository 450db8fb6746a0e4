#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processor time that the demo's training, 4 ranks as pipe=2,data=2, spends in communication, over several backends in
alternating rounds: samples of `perf record` in threads of the backend, in its code and ours, in copies of memory (also those of
others), in the kernel's sockets and in changes of the running thread. Medians over the rounds, in ms a step.

Usage: communication.py ESPALIER --text FILE... [--backends host,gloo] [--rounds 3] [--steps 50]; needs perf
"""
import os
import re
import statistics
import subprocess
import tempfile

import train_runs

parser = train_runs.parser(__doc__, steps=50)
parser.add_argument("--backends", default="host,gloo")
arguments = parser.parse_args()

FREQUENCY = 997
THREADS = re.compile(r"gloo|pt_gloo|pt_tcpstore")
SYMBOLS = re.compile(r"espalier::detail::|espalier::Work|gloo::|c10d::|memmove|memcpy|yield|futex|schedule|finish_task_switch|"
                     r"tcp_|sock|skb|inet|epoll|ep_poll|eventfd|sendmsg|recvmsg|_iter\b")


def ms_a_step(backend):
    with tempfile.TemporaryDirectory() as out:
        data = os.path.join(out, "perf.data")
        training = train_runs.command(arguments, os.path.join(out, "run"), "pipe=2,data=2", "--backend", backend)
        subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY), "-o", data, *training], check=True,
                       capture_output=True)
        report = subprocess.run(["perf", "report", "-i", data, "--no-children", "-g", "none", "--sort", "comm,sym", "-n", "-F",
                                 "sample,comm,sym", "-t", "|"], check=True, capture_output=True, text=True).stdout
    communication = total = 0
    for line in report.splitlines():
        if line.startswith("#") or line.count("|") < 2:
            continue
        samples, thread, symbol = (part.strip() for part in line.split("|", 2))
        total += int(samples)
        if THREADS.match(thread) or SYMBOLS.search(symbol):
            communication += int(samples)
    return tuple(1e3 * samples / FREQUENCY / arguments.steps for samples in (communication, total))


names = arguments.backends.split(",")
runs = train_runs.in_turns(arguments.rounds, {name: lambda name=name: ms_a_step(name) for name in names})
median = {name: [statistics.median(run[i] for run in runs[name]) for i in (0, 1)] for name in names}
print(f"{'backend':<10}{'communication':>15}{'all, with the start':>21}   {names[0]} spends")
for name in names:
    communication, total = median[name]
    print(f"{name:<10}{communication:>12.1f} ms{total:>18.1f} ms   {communication / median[names[0]][0]:.2f}x less in communication")
