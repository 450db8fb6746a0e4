#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the command lines of golden files and compares the answers with those in the file.

A golden file is a list of blocks:

    $ espalier layout data=2          the command line, in the shell's quoting
    2 ranks: data 2                   what it prints
    ! espalier: ...                   what it prints on standard error
    = 2                               its exit code, unless it is 0

Lines before the first block are a comment. To add a case, add its `$` line and run with --update.
"""
import argparse
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys

TIMEOUT_S = 20
HELP_DEFAULT = re.compile(r"\b(FLOAT|INT|TEXT) \[(\S+)\]")  # CLI11 2.4; before, FLOAT=1


def answer(command, line):
    """The block for one command line, `$` line included."""
    words = shlex.split(line)
    if words[:1] != ["espalier"]:
        raise SystemExit(f"golden: a command line begins with 'espalier', not with {line!r}")
    environment = {key: value for key, value in os.environ.items() if key in ("PATH", "LD_LIBRARY_PATH")}
    environment["LC_ALL"] = "C"
    done = subprocess.run([command, *words[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=TIMEOUT_S, env=environment)
    lines = [f"$ {line}"]
    lines += HELP_DEFAULT.sub(r"\1=\2  ", done.stdout).rstrip("\n").splitlines()
    lines += [f"! {text}".rstrip() for text in done.stderr.splitlines()]
    if done.returncode != 0:
        lines.append(f"= {done.returncode}")
    return lines


def main():
    parser = argparse.ArgumentParser(description="Compare the answers of `espalier` with golden files.")
    parser.add_argument("--command", required=True, help="the espalier program")
    parser.add_argument("--update", action="store_true", help="write the answers into the files")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    failed = False
    for path in arguments.files:
        expected = path.read_text().splitlines()
        first = next((i for i, text in enumerate(expected) if text.startswith("$ ")), len(expected))
        actual = expected[:first]
        for text in expected[first:]:
            if text.startswith("$ "):
                actual += answer(arguments.command, text[2:])
        if first == len(expected):
            print(f"{path}: holds no command line")
            failed = True
        elif arguments.update:
            path.write_text("\n".join(actual) + "\n")
        elif actual != expected:
            failed = True
            print("\n".join(difflib.unified_diff(expected, actual, str(path), "now", lineterm="")))
            print(f"if this is meant: {sys.argv[0]} --command {arguments.command} --update {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
