#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How `espalier train` answers SIGINT and SIGTERM: it saves, says how to go on, and ends with 128 + n.

Usage: train_stop_test.py ESPALIER [unittest arguments]; ESPALIER is the program to test.
"""
import os
import signal
import subprocess
import time
import unittest

from processes import ESPALIER, clean_environment
from train_case import TrainCase, children, is_rank

FAR = ["--steps", "100", "--save-every", "100000"]  # nothing is saved on the way


class Stop(TrainCase):
    def saved_step(self, out):
        with open(os.path.join(out, "checkpoints", "latest")) as latest:
            return int(latest.read().strip().removeprefix("step-"))

    def stopped(self, process, out, code):
        """Its text, once it has saved every step it took and ended with `code`."""
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, errors)
        steps = len(self.losses(out))
        self.assertEqual(self.saved_step(out), steps)
        self.assertIn(f"stopped by a signal after step {steps} of 100", errors)
        self.assertIn("--resume", errors)
        self.assertIn("report:", output)
        return errors

    def test_saves_and_goes_on_with_the_numbers_of_a_whole_run(self):
        whole = self.path("whole")
        self.train(*FAR, "--layout", "data=2", "--out", whole)
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                out = self.path(f"out{number}")
                process = self.start(*FAR, "--layout", "data=2", "--out", out)
                self.wait_for_rows(out, 5, process)
                process.send_signal(number)
                errors = self.stopped(process, out, 128 + number)
                self.assertEqual(len(errors.strip().splitlines()), 1, errors)
                self.train(*FAR, "--layout", "data=2", "--out", out, "--resume")
                self.assertEqual(self.losses(out), self.losses(whole))

    def test_a_signal_to_one_rank_stops_all(self):
        out = self.path("out")
        process = self.start(*FAR, "--layout", "pipe=2,data=2", "--out", out)
        self.wait_for_rows(out, 5, process)
        rank = [pid for pid in children(process.pid) if is_rank(pid)][3]
        os.kill(rank, signal.SIGTERM)
        self.stopped(process, out, 128 + signal.SIGTERM)

    def test_one_process_saves_too(self):
        out = self.path("out")
        process = self.start(*FAR, "--out", out)
        self.wait_for_rows(out, 5, process)
        process.send_signal(signal.SIGTERM)
        self.stopped(process, out, 128 + signal.SIGTERM)

    def test_has_the_time_that_run_gives_it(self):
        out = self.path("out")
        process = subprocess.Popen([ESPALIER, "run", "-n", "2", "--grace", "30", "--",
                                    *self.command(*FAR, "--layout", "data=rest", "--out", out)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment())
        self.addCleanup(lambda: (process.kill(), process.wait()))
        self.wait_for_rows(out, 5, process)
        process.send_signal(signal.SIGTERM)
        self.stopped(process, out, 128 + signal.SIGTERM)

    def test_says_that_nothing_is_saved_without_a_folder(self):
        process = self.start("--steps", "100000", "--layout", "data=2", "--log-every", "1")
        process.stdout.readline()
        self.assertIn("step", process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, errors)
        self.assertIn("nothing is saved, as there is no --out", errors)

    def test_a_second_signal_ends_at_once(self):
        slow = ["--batch", "64000", "--micro-batches", "400", "--steps", "2"]  # many seconds a step
        for layout in ("data=1", "data=2"):
            with self.subTest(layout):
                out = self.path(layout)
                process = self.start(*slow, "--layout", layout, "--out", out)
                self.assertIn("parameters", process.stdout.readline())
                time.sleep(0.5)  # within the first step
                process.send_signal(signal.SIGINT)
                time.sleep(0.5)
                self.assertIsNone(process.poll())
                below, begin = children(process.pid), time.monotonic()
                process.send_signal(signal.SIGINT)
                process.wait(timeout=20)
                self.assertLess(time.monotonic() - begin, 2)
                self.assertIn(process.returncode, (-signal.SIGINT, 128 + signal.SIGINT))
                self.assert_gone(below)
                self.assertFalse(os.path.exists(os.path.join(out, "checkpoints")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
