#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`espalier train` and `espalier verify` from outside: what they write, how they end, what they refuse.

Usage: train_test.py ESPALIER [unittest arguments]; ESPALIER is the program to test.
"""
import csv
import json
import os
import signal
import subprocess
import sys
import time
import unittest

from processes import ESPALIER
from train_case import TrainCase, children, is_rank, small_model


class Train(TrainCase):
    def test_writes_metrics_configuration_checkpoints_and_a_report(self):
        out = self.path("out")
        done = self.train("--layout", "pipe=2,data=2", "--steps", "6", "--save-every", "3", "--out", out)
        self.assertEqual([row[0] for row in self.losses(out)], [str(step) for step in range(6)])
        with open(os.path.join(out, "config.json")) as config:
            self.assertEqual(json.load(config)["steps"], 6)
        with open(os.path.join(out, "checkpoints", "latest")) as latest:
            self.assertEqual(latest.read().strip(), "step-00000006")
        with open(os.path.join(out, "report.html")) as report:
            self.assertIn("<svg", report.read())
        self.assertIn("step 6/6", done.stdout)
        self.assertEqual(done.stderr, "")

    def test_gives_the_same_losses_in_every_layout(self):
        outs = {}
        for layout in ("data=1", "pipe=2", "data=2", "pipe=2,data=2"):
            outs[layout] = self.path(layout)
            data = 2 if "data=2" in layout else 1
            self.train("--layout", layout, "--p2p", "broadcast" if layout == "pipe=2" else "auto", "--steps", "4", "--precision", "fp64", "--micro-batches", str(4 // data), "--out", outs[layout])
        expected = [float(row[1]) for row in self.losses(outs["data=1"])]
        for layout, out in outs.items():
            for loss, want in zip([float(row[1]) for row in self.losses(out)], expected, strict=True):
                self.assertAlmostEqual(loss, want, delta=1e-10 * want, msg=layout)

    def test_resumes_bit_for_bit_after_sigkill(self):
        self.kill_and_resume("--steps", "40")

    def test_onebit_adam_resumes_bit_for_bit_after_sigkill(self):
        out = self.kill_and_resume("--steps", "25", "--optimizer", "onebit-adam", "--freeze-step", "8")
        with open(os.path.join(out, "metrics.csv")) as metrics:
            rows = list(csv.DictReader(metrics))
        for row in rows:
            ratio = float(row["averaging_fp32_bytes"]) / float(row["averaging_bytes"])
            self.assertTrue(25 < ratio <= 32 if int(row["step"]) >= 8 else ratio == 1, row)
            self.assertTrue(0 < float(row["averaging_share"]) < 1, row)
        with open(os.path.join(out, "report.html")) as report:
            self.assertIn("Averaging over data", report.read())

    def kill_and_resume(self, *options):
        """The folder of a run that was killed after 12 steps or more; its numbers must be those of a whole one."""
        steps = ["--layout", "pipe=2,data=2", "--save-every", "5", *options]
        whole, broken = self.path("whole"), self.path("broken")
        self.train(*steps, "--out", whole)
        process = self.start(*steps, "--out", broken)
        self.wait_for_rows(broken, 12, process)
        victim = next(pid for pid in children(process.pid) if is_rank(pid))
        os.kill(victim, signal.SIGKILL)
        process.wait(timeout=10)
        self.train(*steps, "--out", broken, "--resume")
        self.assertEqual(self.losses(broken), self.losses(whole))
        return broken

    def test_resumes_in_another_layout(self):
        out, whole = self.path("out"), self.path("whole")
        common = ["--steps", "8", "--precision", "fp64", "--save-every", "4"]
        self.train(*common, "--layout", "data=1", "--micro-batches", "4", "--out", whole)
        process = self.start(*common, "--layout", "pipe=2,data=2", "--out", out)
        self.wait_for_rows(out, 5, process)
        process.kill()
        process.wait()
        if len(self.losses(out)) < 8:
            self.train(*common, "--layout", "data=2", "--out", out, "--resume")
        for (_, loss, *_), (_, want, *_) in zip(self.losses(out), self.losses(whole), strict=True):
            self.assertAlmostEqual(float(loss), float(want), delta=1e-10 * float(want))

    def test_a_killed_rank_ends_all_within_two_seconds_and_is_named(self):
        out = self.path("out")
        process = self.start("--layout", "pipe=2,data=2", "--steps", "100000", "--out", out)
        self.wait_for_rows(out, 3, process)
        below = children(process.pid)
        ranks = [pid for pid in below if is_rank(pid)]
        self.assertEqual(len(ranks), 4)
        begin = time.monotonic()
        os.kill(ranks[2], signal.SIGKILL)
        _, errors = process.communicate(timeout=10)
        seconds = time.monotonic() - begin
        self.assertLess(seconds, 2.0)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn(str(ranks[2]), errors)
        self.assertIn("SIGKILL", errors)
        self.assert_gone(below)
        shown = subprocess.run([ESPALIER, "postmortem", os.path.join(out, "postmortem.json")], capture_output=True, text=True, timeout=20)
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertRegex(shown.stdout, rf"rank 2 \(pid {ranks[2]}\) died; its last call is ")
        self.assertRegex(shown.stdout, rf"\n2 +{ranks[2]} +died\b")
        print(f"ended after {seconds:.2f} s:\n{errors}", file=sys.stderr)

    def test_a_failed_run_without_a_folder_writes_nothing(self):
        here = self.path("here")
        os.mkdir(here)
        process = self.start("--layout", "data=2", "--steps", "100000", "--log-every", "1", cwd=here)
        process.stdout.readline()
        self.assertIn("step", process.stdout.readline())
        os.kill(next(pid for pid in children(process.pid) if is_rank(pid)), signal.SIGKILL)
        _, errors = process.communicate(timeout=10)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("SIGKILL", errors)
        self.assertEqual(os.listdir(here), [])

    def test_sigterm_and_sigint_end_every_rank_within_two_seconds(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            out = self.path(f"out{number}")
            process = self.start("--layout", "pipe=2,data=2", "--steps", "100000", "--out", out)
            self.wait_for_rows(out, 3, process)
            below = children(process.pid)
            begin = time.monotonic()
            process.send_signal(number)
            process.communicate(timeout=10)
            self.assertLess(time.monotonic() - begin, 2.0)
            self.assertEqual(process.returncode, 128 + number)
            self.assert_gone(below)

    def test_refuses_bad_input_with_one_message(self):
        empty, short = self.path("empty"), self.path("short")
        open(empty, "w").close()
        with open(short, "w") as file:
            file.write("too short")
        out_is_a_file = self.path("file")
        open(out_is_a_file, "w").close()
        for arguments, parts in [
            (["--layout", "pipe=0,data=2"], ["pipe", "0"]),
            (["--layout", "pipe=-2"], ["pipe"]),
            (["--layout", "depth=2"], ["depth", "pipe"]),
            (["--layout", "data=2,data=2"], ["data", "twice"]),
            (["--layout", "pipe=8"], ["8 stages", "6 layers", "pipe <= 6"]),
            (["--heads", "3"], ["hidden 16", "3 heads"]),
            (["--layout", "data=2", "--batch", "6"], ["6", "data 2", "2 micro-batches", "4 and 8"]),
            (["--lr", "nan"], ["lr", "nan"]),
            (["--lr", "-1"], ["lr", "-1"]),
            (["--text", self.path("missing")], ["missing"]),
            (["--text", empty], [empty]),
            (["--text", short], ["17"]),
            (["--out", os.path.join(out_is_a_file, "x")], [out_is_a_file]),
            (["--out", self.path("nothing"), "--resume"], ["no checkpoint"]),
            (["--schedule", "zigzag"], ["zigzag", "1f1b"]),
            (["--partition", "0,2,x"], ["0,2,x"]),
            (["--partition", "0,9", "--layout", "pipe=2"], ["9"]),
            (["--p2p", "pigeon"], ["pigeon", "broadcast"]),
            (["--precision", "fp8"], ["fp8", "fp64"]),
            (["--backend", "pigeon"], ["pigeon", "host"]),
            (["--optimizer", "sgd"], ["sgd", "onebit-adam"]),
            (["--optimizer", "onebit-adam", "--freeze-step", "0"], ["--freeze-step is 0"]),
            (["--min-lr", "0.1"], ["--min-lr is 0.1", "--lr 0.003"]),
            (["--min-lr", "0.001", "--decay", "constant"], ["--min-lr", "constant"]),
            (["--decay", "steps"], ["steps", "wsd"]),
            (["--decay-steps", "2"], ["--decay-steps", "cosine", "wsd"]),
            (["--decay", "wsd", "--decay-steps", "2"], ["--warmup 2", "--decay-steps 2", "--steps 3", "0 to 1"]),
            (["--warmup", "-1"], ["--warmup is -1"]),
            (["--betas", "0.9,1"], ["--betas is 1", "below 1"]),
            (["--weight-decay", "-0.1"], ["--weight-decay is -0.1"]),
            (["--val-fraction", "1"], ["--val-fraction is 1", "below 1"]),
            (["--val-fraction", "0.01"], ["40 bytes", "2 sequences", "--batch 8"]),
            (["--val-fraction", "0.1", "--val-text", self.text], ["--val-text", "--val-fraction 0.1"]),
            (["--val-text", self.path("missing")], ["missing"]),
            (["--eval-every", "5"], ["--eval-every 5", "--val-text"]),
            (["--val-fraction", "0.1", "--eval-every", "0"], ["--eval-every is 0"]),
            (["--log-every", "-1"], ["--log-every is -1"]),
            (["--what"], ["--what"]),
        ]:
            for layout in ([], ["--layout", "pipe=2"]):
                with self.subTest(arguments=arguments, layout=layout):
                    if layout and "--layout" in arguments:
                        continue
                    command = [ESPALIER, "train", *small_model(arguments), "--steps", "3", *layout, *arguments]
                    if "--text" not in arguments:
                        command += ["--text", self.text]
                    done = self.run_command(command)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                    for part in parts:
                        self.assertIn(part, done.stderr)

    def test_refuses_a_damaged_checkpoint_and_says_which_file(self):
        out = self.path("out")
        steps = ["--layout", "pipe=2", "--steps", "4", "--save-every", "2"]
        self.train(*steps, "--out", out)
        folder = os.path.join(out, "checkpoints", "step-00000004")
        victim = os.path.join(folder, "wte.safetensors")
        with open(victim, "rb") as file:
            good = file.read()
        flipped = bytearray(good)
        flipped[-5] ^= 0x10
        for damaged in (good[: len(good) // 2], bytes(flipped)):
            with open(victim, "wb") as file:
                file.write(damaged)
            done = self.run_command(self.command(*steps, "--out", out, "--resume"))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertIn("wte.safetensors", done.stderr)

    def test_refuses_ranks_that_were_started_with_different_layouts(self):
        script = self.path("rank.sh")
        with open(script, "w") as file:
            file.write('#!/bin/sh\nif [ "$ESPALIER_RANK" = 1 ]; then layout=pipe=2; else layout=data=2; fi\n'
                       'exec "$@" --layout $layout\n')
        os.chmod(script, 0o755)
        done = self.run_command([ESPALIER, "run", "-n", "2", "--", script, *self.command("--steps", "2")])
        self.assertEqual(done.returncode, 2, done.stderr)
        message, ending = done.stderr.strip().splitlines()
        for part in ("pipe=1", "pipe=2", "rank 0", "rank 1"):
            self.assertIn(part, message)
        self.assertTrue(ending.startswith("espalier run: rank "), ending)

    def test_verify_finds_a_layout_equal_to_one_rank(self):
        done = self.run_command([ESPALIER, "verify", "--layout", "pipe=2,data=2", "--precision", "fp64", "--micro-batches", "3",
                                 "--p2p", "broadcast", *small_model([], ("--layers", "--hidden", "--heads", "--context"))])
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertIn("wte.weight", done.stdout)
        self.assertIn("equal:", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
