#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`espalier bench` from outside: every operation gives right results over every backend, rows say what was measured.

Usage: bench_test.py ESPALIER [unittest arguments]; ESPALIER is the program to test.
"""
import json
import subprocess
import unittest

from processes import ESPALIER, clean_environment

OPERATIONS = {"all_reduce": 1.5, "reduce_scatter": 0.75, "all_gather": 0.75, "all_to_all": 0.75, "broadcast": 1.0, "reduce": 1.0,
              "gather": 0.75, "scatter": 0.75, "send_recv": 1.0, "ping_pong": 2.0, "barrier": 0.0}  # bus bandwidth over algorithm bandwidth with 4 ranks


def run(*words):
    return subprocess.run([ESPALIER, "bench", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
                          env=clean_environment())


class Bench(unittest.TestCase):
    def rows(self, *words):
        done = run(*words, "--rounds", "1", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return json.loads(done.stdout)

    def test_every_operation_in_turns(self):
        rows = self.rows("--op", "all", "--ranks", "4", "--sizes", "1KiB,40000", "--against", "gloo")
        self.assertEqual([(row["operation"], row["backend"]) for row in rows if row["bytes"] in (0, 1024)],
                         [(name, backend) for name in OPERATIONS for backend in ("host", "gloo")])
        for row in rows:
            self.assertEqual(row["wrong"], 0, row)
            self.assertEqual((row["ranks"], row["group"]), (4, "world"), row)
            self.assertTrue(0 < row["min_us"] <= row["median_us"] <= row["p99_us"] <= row["max_us"], row)
            self.assertAlmostEqual(row["bus_gb_s"], row["algorithm_gb_s"] * OPERATIONS[row["operation"]])
            self.assertAlmostEqual(row["algorithm_gb_s"], 1e-3 * row["bytes"] / row["median_us"])
            self.assertEqual(row["bytes"], 4 * row["count"])

    def test_host_buffers(self):
        rows = self.rows("--op", "all", "--ranks", "3", "--sizes", "1KiB,1MiB", "--memory", "host_buffer", "--against", "gloo")
        self.assertEqual({row["wrong"] for row in rows}, {0})

    def test_dtypes(self):
        for dtype in ("float64", "bfloat16", "int8"):
            self.assertEqual([row["wrong"] for row in self.rows("--dtype", dtype, "--sizes", "1KiB")], [0])

    def test_groups_at_the_same_time(self):
        rows = self.rows("--layout", "pipe=2,data=2", "--groups", "data,model", "--sizes", "16KiB:64KiB")
        self.assertEqual([(row["group"], row["ranks"], row["bytes"]) for row in rows],
                         [("data", 2, 16384), ("model", 2, 16384), ("data", 2, 65536), ("model", 2, 65536)])
        self.assertEqual(rows[0]["median_us"], rows[1]["median_us"])

    def test_table(self):
        done = run("--ranks", "2", "--sizes", "1MiB", "--rounds", "1", "--against", "gloo")
        heading, _, columns, host, gloo = done.stdout.splitlines()
        self.assertEqual(heading, "2 ranks (espalier run) on one host; times in us, of the slowest rank; bandwidths in GB/s at the median")
        self.assertEqual(columns.split(), ["operation", "backend", "group", "ranks", "size", "count", "dtype", "min", "median", "p99", "max",
                                           "algbw", "busbw", "wrong", "/", "host"])
        self.assertEqual(host.split()[:8], ["all_reduce", "host", "world", "2", "1", "MiB", "262144", "float32"])
        self.assertEqual(gloo.split()[:8], ["all_reduce", "gloo", "world", "2", "1", "MiB", "262144", "float32"])

    def test_refusals(self):
        for text, *words in (
                ("there is no operation 'smoke'; choose among all_reduce,", "--op", "smoke"),
                ("there is no memory 'own'; choose among ordinary, host_buffer", "--memory", "own"),
                ("there is no dtype 'float8'", "--dtype", "float8"),
                ("backend host twice", "--against", "host"),
                ("there is no 'smoke'", "--backend", "smoke"),
                ("size '1KB'; expected bytes", "--sizes", "1KB"),
                ("sizes 2KiB:1KiB; expected the smaller one first", "--sizes", "2KiB:1KiB"),
                ("--groups names families of the --layout", "--groups", "data"),
                ("there is no family of groups 'date'", "--layout", "data=2", "--groups", "date"),
                ("0 rounds; expected one or more", "--rounds", "0"),
                ("has one member, so nothing is sent", "--layout", "data=2", "--groups", "pipe")):
            done = run(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            self.assertIn(text, done.stderr)
            self.assertEqual(len([line for line in done.stderr.splitlines() if not line.startswith("espalier run: rank")]), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
