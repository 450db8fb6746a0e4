#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program of bench/ says what it takes, and refuses what it cannot use in one line.

Usage: bench_programs_test.py PROGRAM
"""
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)


class BenchProgram(unittest.TestCase):
    def call(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=30)

    def test_explains_itself(self):
        done = self.call("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("rounds", done.stdout)

    def test_refuses_what_it_cannot_use_in_one_line(self):
        for arguments in (["0", "0"], ["-1", "-1"], ["many", "many"], ["1", "1", "eth0", "more"], ["--what"]):
            with self.subTest(arguments):
                done = self.call(*arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                self.assertIn("--help", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
