#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`espalier` answers without LibTorch, and at once: best of several runs within the limit."""
import argparse
import os
import subprocess
import sys
import time

RUNS = 40
COMMAND_LINES = [
    ["--version"],
    ["layout", "data=4,pipe=2,tensor=2,expert=2"],
    ["explain", "5", "--layout", "pipe=2,data=2,tensor=2"],
    ["schedule", "1f1b", "--stages", "4", "--micro-batches", "8"],
    ["partition", "--weights", "5,1,1,1,5", "--parts", "3"],
]
UNWANTED = ("torch", "libc10", "libmpi", "libgomp", "libcu", "not found")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--command", required=True)
    command = parser.parse_args().command
    limit_ms = float(os.environ["ESPALIER_STARTUP_LIMIT_MS"])
    failed = False

    libraries = subprocess.run(["ldd", command], capture_output=True, text=True, check=True, timeout=20).stdout
    if "libstdc++" not in libraries:
        print(f"ldd shows nothing useful:\n{libraries}")
        failed = True
    for line in libraries.splitlines():
        if any(name in line for name in UNWANTED):
            print(f"loads what it should not: {line.strip()}")
            failed = True

    for words in COMMAND_LINES:
        best_ms = float("inf")
        for _ in range(RUNS):
            begin = time.perf_counter()
            subprocess.run([command, *words], stdout=subprocess.DEVNULL, check=True, timeout=20)
            best_ms = min(best_ms, 1000 * (time.perf_counter() - begin))
        print(f"{best_ms:6.2f} ms  espalier {' '.join(words)}")
        if best_ms > limit_ms:
            print(f"slower than {limit_ms} ms")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
