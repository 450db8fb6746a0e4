#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a user of `espalier train` follows a run by: validation, learning rates, progress, TensorBoard's events.

Usage: train_follow_test.py ESPALIER [unittest arguments]; ESPALIER is the program to test.
"""
import csv
import glob
import math
import os
import struct
import unittest

from train_case import TrainCase


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283


def records(path):
    """The messages of a TFRecord file; every checksum must be right."""
    with open(path, "rb") as file:
        data = file.read()
    at, found = 0, []
    while at < len(data):
        header, (length,) = data[at:at + 8], struct.unpack_from("<Q", data, at)
        message = data[at + 12:at + 12 + length]
        for part, place in ((header, at + 8), (message, at + 12 + length)):
            crc = crc32c(part)
            masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
            assert struct.unpack_from("<I", data, place) == (masked,), f"{path}: checksum at {place}"
        found.append(message)
        at += 16 + length
    return found


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """{number: [value]} of a protobuf message."""
    at, found = 0, {}
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            form, size = {1: ("<d", 8), 5: ("<f", 4)}[wire]
            (value,), at = struct.unpack_from(form, data, at), at + size
        found.setdefault(number, []).append(value)
    return found


class Follow(TrainCase):
    def rows(self, out):
        with open(os.path.join(out, "metrics.csv")) as metrics:
            return list(csv.DictReader(metrics))

    def numbers(self, out):
        return [(row["step"], row["loss"], row["val_loss"]) for row in self.rows(out)]

    def test_validates_in_every_layout_with_the_same_samples(self):
        validations = {}
        for layout, micro_batches in (("data=1", "4"), ("pipe=2,data=2", "2")):
            out = self.path(layout)
            done = self.train("--layout", layout, "--micro-batches", micro_batches, "--precision", "fp64", "--steps", "5", "--val-fraction", "0.3",
                              "--eval-every", "2", "--eval-batches", "3", "--out", out)
            rows = self.rows(out)
            self.assertEqual([row["step"] for row in rows if row["val_loss"]], ["1", "3", "4"])
            validations[layout] = [float(row["val_loss"]) for row in rows if row["val_loss"]]
            for row in rows:
                if row["val_loss"]:
                    self.assertAlmostEqual(float(row["val_perplexity"]), math.exp(float(row["val_loss"])), delta=1e-9)
            self.assertEqual(done.stdout.count("validation loss"), 3, done.stdout)
            self.assertIn(f"perplexity {float(rows[-1]['val_perplexity']):.4g}", done.stdout)
            with open(os.path.join(out, "report.html")) as report:
                self.assertIn("Validation loss", report.read())
        for got, want in zip(*validations.values(), strict=True):
            self.assertAlmostEqual(got, want, delta=1e-10 * want)

    def test_a_fraction_is_the_end_of_the_text(self):
        with open(self.text) as file:
            text = file.read()
        learnt, aside = self.path("learnt"), self.path("aside")
        for path, part in ((learnt, text[:3000]), (aside, text[3000:])):
            with open(path, "w") as file:
                file.write(part)
        self.assertEqual(len(text), 4000)
        common = ["--steps", "3", "--eval-batches", "0"]
        self.train(*common, "--val-fraction", "0.25", "--out", self.path("fraction"))
        self.train(*common, "--text", learnt, "--val-text", aside, "--out", self.path("files"))
        self.assertEqual(self.numbers(self.path("fraction")), self.numbers(self.path("files")))

    def test_keeps_the_best_checkpoint(self):
        out = self.path("out")
        self.train("--steps", "12", "--val-fraction", "0.3", "--eval-every", "2", "--lr", "0.3", "--decay", "constant", "--clip", "0",
                   "--layout", "data=2", "--out", out)
        losses = {int(row["step"]) + 1: float(row["val_loss"]) for row in self.rows(out) if row["val_loss"]}
        best = min(losses, key=losses.get)
        self.assertLess(best, 12, "the last is the best, which tests nothing")
        with open(os.path.join(out, "best", "latest")) as latest:
            self.assertEqual(latest.read().strip(), f"step-{best:08}")

    def test_the_learning_rate_falls_as_asked(self):
        expected = {
            ("--decay", "cosine"): [0.5, 1, *[0.1 + 0.9 * (1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)]],
            ("--decay", "linear", "--min-lr", "0.002"): [0.5, 1, *[1 - 0.8 * i / 8 for i in range(8)]],
            ("--decay", "constant"): [0.5, *[1] * 9],
            ("--decay", "wsd", "--decay-steps", "4", "--min-lr", "0"): [0.5, *[1] * 5, 1, 0.75, 0.5, 0.25],
        }
        for options, shares in expected.items():
            with self.subTest(options):
                out = self.path(options[1])
                self.train("--steps", "10", "--warmup", "2", "--lr", "0.01", *options, "--out", out)
                for row, share in zip(self.rows(out), shares, strict=True):
                    self.assertAlmostEqual(float(row["lr"]), 0.01 * share, delta=1e-12)

    def test_a_warm_up_that_never_ends_is_said(self):
        done = self.train("--steps", "4", "--warmup", "100", "--lr", "0.01")
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for part in ("--warmup 100", "--steps 4", "0.0004", "--lr 0.01", "--warmup 4 or less"):
            self.assertIn(part, done.stderr)

    def test_the_optimizer_takes_its_numbers(self):
        outs = []
        for options in ([], ["--weight-decay", "0"], ["--betas", "0.5,0.95"], ["--betas", "0.9,0.5"], ["--decay-all"]):
            outs.append(self.path(f"out{len(outs)}"))
            self.train("--steps", "4", *options, "--out", outs[-1])
        losses = [[row[1] for row in self.losses(out)] for out in outs]
        self.assertEqual(len({tuple(one) for one in losses}), 5, losses)

    def test_log_every_gives_a_line_every_so_many_steps(self):
        done = self.train("--steps", "10", "--log-every", "4")
        self.assertEqual([line.split("/")[0].split()[1] for line in done.stdout.splitlines() if line.startswith("step")], ["4", "8", "10"])

    def test_writes_events_that_an_independent_reader_finds_right(self):
        out = self.path("out")
        steps = ["--save-every", "2", "--val-fraction", "0.3", "--eval-every", "2", "--layout", "data=2", "--out", out]
        self.train("--steps", "4", *steps)
        (first,) = glob.glob(os.path.join(out, "*tfevents*"))
        self.train("--steps", "6", *steps, "--resume")
        (second,) = set(glob.glob(os.path.join(out, "*tfevents*"))) - {first}
        events = {path: [fields(message) for message in records(path)] for path in (first, second)}
        for path, start in ((first, []), (second, [4])):
            version, session = events[path][:2]
            self.assertEqual(version[3], [b"brain.Event:2"])
            self.assertEqual((session.get(2) or [], fields(session[7][0])[1]), (start or [0], [1]))
        scalars = {}
        for event in [*events[first][2:], *events[second][2:]]:
            for value in fields(event[5][0])[1]:
                tag, number = fields(value)[1][0].decode(), fields(value)[2][0]
                scalars[tag, event[2][0]] = number
        columns = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "train/tokens_per_s": "tokens_per_s",
                   "train/skipped": "skipped", "validation/loss": "val_loss", "validation/perplexity": "val_perplexity"}
        expected = {(tag, int(row["step"])): struct.unpack("<f", struct.pack("<f", float(row[name])))[0]
                    for row in self.rows(out) for tag, name in columns.items() if row[name]}
        self.assertEqual(len(expected), 6 * 5 + 3 * 2)
        self.assertEqual(scalars, expected)

    def test_goes_on_without_metrics_and_says_so(self):
        out = self.path("out")
        steps = ["--save-every", "3", "--out", out]
        self.train("--steps", "3", *steps)
        os.remove(os.path.join(out, "metrics.csv"))
        done = self.train("--steps", "5", *steps, "--resume")
        self.assertIn("metrics.csv is not there; a new one begins with step 3", done.stderr)
        self.assertEqual([row["step"] for row in self.rows(out)], ["3", "4"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
