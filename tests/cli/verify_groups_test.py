#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`espalier verify-groups` from outside: what it prints on threads, on processes and under a launcher, what it refuses.

Usage: verify_groups_test.py ESPALIER [unittest arguments]; ESPALIER is the program to test.
"""
import subprocess
import unittest

from processes import ESPALIER, clean_environment


def run(*words):
    return subprocess.run([ESPALIER, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
                          env=clean_environment())


class VerifyGroups(unittest.TestCase):
    def expect_as_planned(self, done, heading, *lines):
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertEqual(done.stdout.splitlines()[0], heading)
        for line in lines:
            self.assertIn(line + "\n", done.stdout)

    def expect_refused(self, text, *words):
        done = run(*words)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn(text, done.stderr)
        own = [line for line in done.stderr.splitlines() if not line.startswith("espalier run: rank")]
        self.assertEqual(len(own), 1, done.stderr)  # one rank speaks for all

    def test_layout_on_threads(self):
        done = run("verify-groups", "--layout", "pipe=2,data=2,tensor=2")
        self.expect_as_planned(
            done, "8 ranks (threads) over host: 46 groups in 11 families; rank 0 opened 5 communicators",
            "data                    4  as planned", "tensor                  4  as planned", "as planned: 46 groups")

    def test_layout_on_processes(self):
        for backend in ("host", "gloo"):
            done = run("verify-groups", "--layout", "pipe=2,data=2", "--as", "processes", "--backend", backend)
            self.expect_as_planned(
                done, f"4 ranks (espalier run) over {backend}: 30 groups in 11 families; rank 0 opened 2 communicators",
                "pipe                    2  as planned", "as planned: 30 groups")

    def test_named_plan(self):
        done = run("verify-groups", "--plan", "expert_data", "expert=2", "pipe=2", "--world", "8")
        self.expect_as_planned(
            done, "8 ranks (threads) over host: 8 groups in 2 families; rank 0 opened 2 communicators",
            "ep_size_2.data          4  as planned", "ep_size_2               4  as planned", "as planned: 8 groups")

    def test_under_a_launcher(self):
        done = run("run", "-n", "3", "--", ESPALIER, "verify-groups", "--layout", "data=rest")
        self.expect_as_planned(
            done, "3 ranks (espalier run) over host: 25 groups in 11 families; rank 0 opened 0 communicators",
            "as planned: 25 groups")

    def test_refusals(self):
        self.expect_refused("nothing to verify; expected --layout", "verify-groups")
        self.expect_refused("both a layout and a plan", "verify-groups", "--layout", "data=2", "--plan", "model_data")
        self.expect_refused("unexpected argument 'model=2'; key=value goes with --plan", "verify-groups", "--layout", "data=2", "model=2")
        self.expect_refused("the number of ranks is not known; add --world N", "verify-groups", "--layout", "data=rest")
        self.expect_refused("the number of ranks is not known; add --world N", "verify-groups", "--plan", "model_data")
        self.expect_refused("legal model values: 1, 2, 3, 6", "verify-groups", "--plan", "model_data", "model=4", "--world", "6")
        self.expect_refused("there is no 'smoke'", "verify-groups", "--layout", "data=2", "--backend", "smoke")
        self.expect_refused("100000 ranks on this host; expected at most 256", "verify-groups", "--layout", "data=100000")
        self.expect_refused("--as threads, but this is a rank of espalier run already",
                            "run", "-n", "2", "--", ESPALIER, "verify-groups", "--layout", "data=2", "--as", "threads")
        self.expect_refused("but the world has 3", "run", "-n", "3", "--", ESPALIER, "verify-groups", "--layout", "data=2")


if __name__ == "__main__":
    unittest.main()
