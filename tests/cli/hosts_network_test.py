#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two hosts as two network namespaces: `espalier run --hostfile --remote-shell 'ip netns exec'`, training across them.

Usage: hosts_network_test.py ESPALIER; needs root. Where the machine allows no network namespaces the exit code is 77.
"""
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from processes import ESPALIER, clean_environment

NAMES = [f"espalier{os.getpid()}{letter}" for letter in "ab"]
TRAIN = ["train", "--layout", "pipe=2,data=2", "--layers", "2", "--hidden", "16", "--heads", "2", "--context", "16", "--batch", "8",
         "--micro-batches", "2", "--warmup", "2", "--sample", "8"]
END_SECONDS = 10


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def make_network():
    for name in NAMES:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("link", "add", "name", "eth0", "netns", NAMES[0], "type", "veth", "peer", "name", "eth0", "netns", NAMES[1])
    for number, name in enumerate(NAMES, 1):
        ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("netns", "exec", name, "true")  # needs more rights than making them


def remove_network():
    for name in NAMES:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def processes_in_network():
    return [int(pid) for name in NAMES for pid in ip("netns", "pids", name).stdout.split()]


class HostsOverNetwork(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.text = os.path.join(self.folder, "text")
        with open(self.text, "w") as file:
            file.write("".join(f"{number} squared is {number * number}. " for number in range(300)))
        self.hostfile = os.path.join(self.folder, "hosts")
        with open(self.hostfile, "w") as file:
            file.write("".join(f"{name} slots=2\n" for name in NAMES))
        self.launch = [ESPALIER, "run", "--hostfile", self.hostfile, "--remote-shell", "ip netns exec", "--master-addr", "10.77.0.1", "--"]

    def train(self, launch, steps, out):
        return [*launch, ESPALIER, *TRAIN, "--text", self.text, "--steps", str(steps), "--out", os.path.join(self.folder, out)]

    def losses(self, out):
        with open(os.path.join(self.folder, out, "metrics.csv")) as file:
            return [float(row["loss"]) for row in csv.DictReader(file)]

    def test_trains_with_the_losses_of_one_host(self):
        for launch, out, backend in ([], "one", "host"), (self.launch, "two", "hierarchical"):
            done = subprocess.run(self.train(launch, 5, out), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
                                  env=clean_environment())
            self.assertEqual(done.returncode, 0, done)
            self.assertIn(f"4 ranks over {backend}", done.stdout)
        self.assertEqual(len(self.losses("one")), 5)
        for got, want in zip(self.losses("two"), self.losses("one"), strict=True):
            self.assertAlmostEqual(got, want, delta=1e-5 * want)
        self.assertEqual(processes_in_network(), [])

    def test_a_killed_rank_ends_all_on_both_hosts(self):
        program = subprocess.Popen(self.train(self.launch, 100000, "killed"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=clean_environment())
        while "step" not in program.stdout.readline():
            self.assertIsNone(program.poll())
        victim = None
        for pid in map(int, ip("netns", "pids", NAMES[1]).stdout.split()):
            with open(f"/proc/{pid}/environ", "rb") as file:
                if b"\0ESPALIER_RANK=3\0" in b"\0" + file.read():
                    victim = pid
        self.assertIsNotNone(victim)
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        _, errors = program.communicate(timeout=60)
        self.assertLess(time.monotonic() - start, END_SECONDS)
        self.assertEqual(program.returncode, 128 + signal.SIGKILL, errors)
        self.assertRegex(errors, rf"espalier run: rank 3 of 4 \(pid {victim} on host {NAMES[1]}\) was killed by signal 9")
        self.assertIn(f"host {NAMES[1]} (ranks 2 to 3) ended with exit code 137", errors)
        self.assertRegex(errors, rf"rank 3 .*{victim}")
        self.assertEqual(processes_in_network(), [])


if __name__ == "__main__":
    try:
        make_network()
    except FileNotFoundError as error:
        print("no network namespaces here:", error)
        sys.exit(77)
    except subprocess.CalledProcessError as error:
        remove_network()
        print("no network namespaces here:", error.stderr)
        sys.exit(77)
    try:
        unittest.main()
    finally:
        remove_network()
