# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks that run `espalier train` share: their arguments, the command, its metrics, rounds in turns."""
import argparse
import csv
import os
import statistics


def parser(description, steps):
    """An argument parser with what all of them take: ESPALIER --text FILE... [--rounds N] [--steps N]."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("espalier")
    result.add_argument("--text", nargs="+", required=True)
    result.add_argument("--rounds", type=int, default=3)
    result.add_argument("--steps", type=int, default=steps)
    return result


def command(arguments, out, layout, *options, steps=None):
    """`espalier train` that does nothing but train: no sample, one checkpoint at the end."""
    return [arguments.espalier, "train", "--layout", layout, "--steps", str(steps or arguments.steps), "--sample", "0", "--save-every", "100000",
            "--out", out, *options, "--text", *arguments.text]


def metrics(out):
    with open(os.path.join(out, "metrics.csv")) as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def tokens_per_s(rows):
    """Median over the steps of a run, the first 5 left out."""
    return statistics.median(row["tokens_per_s"] for row in rows[5:] or rows)


def in_turns(rounds, cases):
    """{name: [result of each round]} of {name: function}, called one after the other in every round."""
    results = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            results[name].append(run())
    return results
