#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The backend mpi from outside: `espalier run --backend mpi` and plain mpirun, training and groups, what is refused.

Usage: mpi_test.py ESPALIER [unittest arguments]; ESPALIER is the program to test, in a build with MPI.
"""
import csv
import json
import os
import subprocess
import tempfile
import unittest

from processes import ESPALIER, clean_environment

RUN = [ESPALIER, "run", "--backend", "mpi", "-n", "4", "--"]
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "4"]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


def run(*words):
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=100,
                          env=clean_environment() | AS_ROOT)


class Mpi(unittest.TestCase):
    def expect_refused(self, text, *words):
        done = run(ESPALIER, *words)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn(text, done.stderr)

    def test_trains_with_the_losses_of_host(self):
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "text")
            with open(text, "w") as file:
                file.write("".join(f"{number} squared is {number * number}. " for number in range(300)))

            def losses(name, starter, *backend):
                done = run(*starter, ESPALIER, "train", "--layout", "pipe=2,data=2", "--text", text, "--layers", "2", "--hidden", "16",
                           "--heads", "2", "--context", "16", "--batch", "8", "--micro-batches", "2", "--warmup", "2", "--steps", "5",
                           "--sample", "8", "--out", os.path.join(folder, name), *backend)
                self.assertEqual(done.returncode, 0, done)
                self.assertIn(f"4 ranks over {name.split('.')[0]}", done.stdout)
                self.assertNotIn("\x1b", done.stdout)  # that is for terminals
                with open(os.path.join(folder, name, "metrics.csv")) as metrics:
                    return [float(row["loss"]) for row in csv.DictReader(metrics)]

            expected = losses("host", [])
            self.assertEqual(len(expected), 5)
            for got in losses("mpi.run", RUN), losses("mpi.mpirun", MPIRUN, "--backend", "mpi"):
                for loss, want in zip(got, expected, strict=True):
                    self.assertAlmostEqual(loss, want, delta=1e-6 * want)

    def test_verifies_groups(self):
        done = run(*RUN, ESPALIER, "verify-groups", "--layout", "pipe=2,data=2")
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(done.stdout.splitlines()[0],
                         "4 ranks (Open MPI) over mpi: 30 groups in 11 families; rank 0 opened 2 communicators")
        self.assertEqual(done.stdout.splitlines()[-1], "as planned: 30 groups")

    def test_says_how_to_start_the_ranks(self):
        remedy = "start them with espalier run --backend mpi -n 4 -- PROGRAM"
        self.expect_refused(remedy, "verify-groups", "--layout", "pipe=2,data=2", "--as", "processes", "--backend", "mpi")
        self.expect_refused(remedy, "train", "--layout", "pipe=2,data=2", "--text", __file__, "--backend", "mpi")
        self.expect_refused("the ranks of backend mpi are processes, not threads", "verify-groups", "--layout", "data=2", "--backend", "mpi")
        self.expect_refused("-n 0; expected at least one rank", "run", "--backend", "mpi", "-n", "0", "--", "true")

    def test_doctor_shows_it(self):
        done = run(ESPALIER, "doctor", "--json")
        self.assertEqual(json.loads(done.stdout)["built in"]["backends"], ["host", "gloo", "hierarchical", "mpi"])

    def test_exit_code_is_that_of_the_program(self):
        self.assertEqual(run(*RUN, "sh", "-c", "exit 7").returncode, 7)


if __name__ == "__main__":
    unittest.main()
