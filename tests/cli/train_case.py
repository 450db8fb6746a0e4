# SPDX-License-Identifier: Apache-2.0
"""What tests of `espalier train` share: a text, a small model, processes to start and to look for."""
import csv
import os
import random
import subprocess
import tempfile
import time
import unittest

from processes import ESPALIER, clean_environment

SMALL = {"--layers": "2", "--hidden": "16", "--heads": "2", "--context": "16", "--batch": "8", "--micro-batches": "2",
         "--warmup": "2", "--sample": "8"}


def small_model(arguments, names=tuple(SMALL)):
    """The small model's options, but for those that are given."""
    return [word for name in names if name not in arguments for word in (name, SMALL[name])]


def children(pid):
    """All processes below pid, found through /proc."""
    below = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    below.setdefault(int(stat.read().rsplit(")", 1)[1].split()[1]), []).append(int(entry))
            except OSError:
                pass
    found, todo = [], [pid]
    while todo:
        for child in below.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def is_rank(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return b"ESPALIER_RANK=" in environ.read()
    except OSError:
        return False


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class TrainCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = self.path("text")
        random.seed(1)
        with open(self.text, "w") as text:
            text.write("".join(random.choice("the quick brown fox ") for _ in range(4000)))

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def command(self, *arguments):
        text = [] if "--text" in arguments else ["--text", self.text]
        return [ESPALIER, "train", *text, *small_model(arguments), *arguments]

    def run_command(self, command, **more):
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, env=clean_environment() | more.pop("env", {}), **more)

    def train(self, *arguments):
        done = self.run_command(self.command(*arguments))
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        return done

    def losses(self, out):
        with open(os.path.join(out, "metrics.csv")) as metrics:
            return [(row["step"], row["loss"], row["grad_norm"], row["lr"]) for row in csv.DictReader(metrics)]

    def start(self, *arguments, **more):
        process = subprocess.Popen(self.command(*arguments), **more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   env=clean_environment(), start_new_session=True)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close(), process.stderr.close()))
        return process

    def wait_for_rows(self, out, rows, process):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.assertIsNone(process.poll(), "it ended early")
            try:
                if len(self.losses(out)) >= rows:
                    return
            except (OSError, KeyError):
                pass
            time.sleep(0.01)
        self.fail("no progress")

    def assert_gone(self, pids):
        deadline = time.monotonic() + 2
        while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual([pid for pid in pids if alive(pid)], [])
