#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`espalier train` and `verify` become espalier-train: found beside the command, else in PATH, arguments untouched."""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

ARGUMENTS = ["--layout", "pipe=2,data=2", "--help", "-x", "two words", "--", "--version", "", "-"]
STAND_IN = '#!/bin/sh\nprintf "%s|" {name} "$@"\nexit {code}\n'


def write_stand_in(folder, name, code):
    program = folder / "espalier-train"
    program.write_text(STAND_IN.format(name=name, code=code))
    program.chmod(0o755)


def run(command, words, path):
    return subprocess.run([command, *words], capture_output=True, text=True, timeout=20, env={"PATH": path})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--command", required=True)
    original = parser.parse_args().command
    failures = []

    def expect(what, done, code, stdout=None, stderr=None):
        if done.returncode != code or (stdout is not None and done.stdout != stdout) or \
           (stderr is not None and stderr not in done.stderr):
            failures.append(f"{what}: exit code {done.returncode}\n  {done.stdout!r}\n  {done.stderr!r}")

    with tempfile.TemporaryDirectory() as name:
        beside, elsewhere = pathlib.Path(name, "beside"), pathlib.Path(name, "elsewhere")
        beside.mkdir()
        elsewhere.mkdir()
        command = shutil.copy(original, beside / "espalier")
        path = f"{elsewhere}:/usr/bin:/bin"

        expect("not there", run(command, ["train"], path), 2, "", f"espalier-train: not found in {beside} nor in PATH")
        write_stand_in(elsewhere, "in-path", 7)
        for word in ("train", "verify", "verify-groups", "bench"):
            expect("in PATH", run(command, [word, *ARGUMENTS], path), 7, "|".join(["in-path", word, *ARGUMENTS, ""]))
        write_stand_in(beside, "beside", 130)
        for word in ("train", "verify", "verify-groups", "bench"):
            expect("beside", run(command, [word, *ARGUMENTS], path), 130, "|".join(["beside", word, *ARGUMENTS, ""]))
        expect("without arguments", run(command, ["train"], path), 130, "beside|train|")
        (beside / "espalier-train").chmod(0o644)
        expect("not executable", run(command, ["train"], path), 2, "", "espalier-train: could not be started: Permission denied")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
