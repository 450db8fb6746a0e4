#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains PROGRAM on 2 ranks under ESPALIER run, once whole and once killed in mid-run and resumed: same losses.

Usage: kill_and_resume.py ESPALIER PROGRAM
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

espalier, program = sys.argv[1:]


def command(folder):
    return [espalier, "run", "-n", "2", "--", program, folder]


def last_line(folder):
    done = subprocess.run(command(folder), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return done.stdout.strip().splitlines()[-1]


with tempfile.TemporaryDirectory() as root:
    whole, broken = os.path.join(root, "whole"), os.path.join(root, "broken")
    expected = last_line(whole)
    process = subprocess.Popen(command(broken), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    latest = os.path.join(broken, "latest")
    while not os.path.exists(latest) or open(latest).read() < "step-00000050":
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    print("killed after", open(latest).read())
    resumed = last_line(broken)
    assert resumed == expected and resumed.startswith("step 200"), f"{resumed} after resuming, {expected} without"
