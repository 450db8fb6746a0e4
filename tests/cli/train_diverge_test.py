#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`espalier train` when numbers are no longer finite, and when its ranks were given different ones.

Usage: train_diverge_test.py ESPALIER [unittest arguments]; ESPALIER is the program to test.
"""
import csv
import os
import unittest

from processes import ESPALIER
from train_case import TrainCase

ABSURD = ["--lr", "1e30", "--clip", "0", "--warmup", "0"]
DIVERGED = 5  # exit code


class Diverge(TrainCase):
    def skipped(self, out):
        with open(os.path.join(out, "metrics.csv")) as metrics:
            return [row["skipped"] for row in csv.DictReader(metrics)]

    def test_ends_after_so_many_skipped_steps_and_says_why(self):
        for layout in ("data=1", "pipe=2"):
            with self.subTest(layout):
                out = self.path(layout)
                done = self.run_command(self.command(*ABSURD, "--layout", layout, "--steps", "40", "--max-skipped", "3", "--log-every", "1",
                                                     "--save-every", "2", "--out", out))
                self.assertEqual(done.returncode, DIVERGED, done.stderr)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                for part in ("diverged", "3 steps in a row were skipped", "lower --lr"):
                    self.assertIn(part, done.stderr)
                skipped = self.skipped(out)
                self.assertEqual(skipped[-3:], ["1"] * 3)
                self.assertEqual(skipped[0], "0")
                self.assertIn(f"{skipped.count('1')} skipped", done.stdout)
                with open(os.path.join(out, "report.html")) as report:
                    self.assertIn(f"{skipped.count('1')} skipped", report.read())

    def test_says_that_no_sample_can_be_drawn(self):
        for layout in ("data=1", "pipe=2"):
            with self.subTest(layout):
                done = self.run_command(self.command(*ABSURD, "--layout", layout, "--steps", "8", "--max-skipped", "0"))
                self.assertEqual(done.returncode, DIVERGED, done.stderr)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                for part in ("after step 8 of 8", "no sample can be drawn", "not finite"):
                    self.assertIn(part, done.stderr)
                self.assertIn("7 skipped", done.stdout)

    def test_refuses_ranks_that_were_given_different_options(self):
        other_text, script = self.path("other"), self.path("rank.sh")
        with open(self.text) as text, open(other_text, "w") as other:
            other.write(text.read()[::-1])
        with open(script, "w") as file:
            file.write('#!/bin/sh\nname=$1 mine=$2 other=$3; shift 3\nif [ "$ESPALIER_RANK" = 1 ]; then mine=$other; fi\n'
                       'exec "$@" $name $mine\n')
        os.chmod(script, 0o755)
        for name, mine, other, parts in [("--lr", "1e-3", "5e-2", ("'lr=0.001' on rank 0", "'lr=0.05' on rank 1")),
                                         ("--batch", "8", "16", ("'batch=8' on rank 0", "'batch=16' on rank 1")),
                                         ("--save-every", "2", "3", ("save_every=2", "save_every=3")),
                                         ("--weight-decay", "0", "0.2", ("weight_decay=0'", "weight_decay=0.2'")),
                                         ("--text", self.text, other_text, ("text=4000 bytes", "rank 1"))]:
            with self.subTest(name):
                command = [ESPALIER, "run", "-n", "2", "--", script, name, mine, other, *self.command("--steps", "2", "--layout", "data=2", name)]
                del command[len(command) - 1 - command[::-1].index(name)]  # the script appends it with its value
                done = self.run_command(command)
                self.assertEqual(done.returncode, 2, done.stderr)
                for part in parts:
                    self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
