#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`espalier run --hostfile` from outside, over remote shells that stay on this machine.

Usage: hosts_test.py ESPALIER [unittest arguments]; ESPALIER is the program to test.
"""
import os
import signal
import subprocess
import tempfile
import time
import unittest

from processes import ESPALIER, clean_environment

# Both leave the host's name out. The second one joins its words and lets a shell read them, as ssh does.
SHELLS = {"words": '#!/bin/sh\nshift\nexec "$@"\n', "line": '#!/bin/sh\nshift\nexec sh -c "$*"\n'}
END_SECONDS = 3


def alive(mark):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if mark.encode() in file.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass
    return found


class Hosts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in SHELLS.items():
            self.write(name, text, 0o755)
        self.write("hosts", "alpha slots=2\n\n# beta has one\nbeta slots=1\n")

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def words(self, *options, shell="words", hostfile="hosts"):
        return [ESPALIER, "run", "--hostfile", os.path.join(self.folder, hostfile), "--remote-shell",
                os.path.join(self.folder, shell), *options]

    def run_on_hosts(self, *options, shell="words", variables=None):
        return subprocess.run(self.words(*options, shell=shell), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50,
                              cwd=self.folder, env=clean_environment() | (variables or {}))

    def expect_refused(self, text, *options):
        done = self.run_on_hosts(*options, "--", "true")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        self.assertIn(text, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done)

    def test_tells_every_rank_who_it_is(self):
        show = ("echo $ESPALIER_RANK/$ESPALIER_WORLD_SIZE $ESPALIER_LOCAL_RANK/$ESPALIER_LOCAL_WORLD_SIZE on $ESPALIER_HOST "
                "meets at $ESPALIER_MASTER_ADDR:$ESPALIER_MASTER_PORT in $PWD")
        for shell in SHELLS:
            done = self.run_on_hosts("--master-addr", "10.0.0.1", "--master-port", "1234", "--", "sh", "-c", show, shell=shell)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            place = f"meets at 10.0.0.1:1234 in {os.path.realpath(self.folder)}"
            self.assertEqual(sorted(done.stdout.splitlines()),
                             [f"0/3 0/2 on alpha {place}", f"1/3 1/2 on alpha {place}", f"2/3 0/1 on beta {place}"])

    def test_takes_the_first_slots(self):
        done = self.run_on_hosts("-n", "2", "--", "sh", "-c", "echo $ESPALIER_RANK/$ESPALIER_WORLD_SIZE $ESPALIER_HOST $ESPALIER_MASTER_ADDR")
        self.assertEqual(sorted(done.stdout.splitlines()), ["0/2 alpha alpha", "1/2 alpha alpha"], done)

    def test_passes_words_and_variables_unchanged(self):
        odd = "two words, 'quotes\", $HOME; `ls` \\ \n and \u00fc"
        for shell in SHELLS:
            done = self.run_on_hosts("-n", "1", "--env", "ODD", "--env", f"OTHER={odd}", "--backend", "gloo", "--", "sh", "-c",
                                     'printf "%s|%s|%s|%s" "$ODD" "$OTHER" "$1" "$ESPALIER_BACKEND"', "sh", odd, shell=shell,
                                     variables={"ODD": odd})
            self.assertEqual((done.returncode, done.stdout.rstrip("\n")), (0, f"{odd}|{odd}|{odd}|gloo"), done)

    def test_names_the_rank_and_the_host_that_failed(self):
        done = self.run_on_hosts("--", "sh", "-c", "test $ESPALIER_RANK != 2 || exit 7; sleep 30")
        self.assertEqual(done.returncode, 7, done)
        self.assertRegex(done.stderr, r"^espalier run: rank 2 of 3 \(pid \d+ on host beta\) ended with exit code 7\n"
                                      r"espalier run: host beta \(rank 2\) ended with exit code 7; ending the other 1\n$")

    def test_a_lost_peer_is_not_blamed(self):
        done = self.run_on_hosts("--", "sh", "-c", "test $ESPALIER_RANK != 2 || kill -KILL $$; sleep 0.1; exit 3")
        self.assertEqual(done.returncode, 128 + signal.SIGKILL, done)
        self.assertEqual(done.stderr.count("espalier run: rank"), 1, done)
        self.assertIn("host beta (rank 2) ended with exit code 137", done.stderr)

    def end(self, number, code):
        mark = f"{os.getpid()}.{number}0123"  # seconds to sleep, which nobody else does
        program = subprocess.Popen(self.words("--", "sh", "-c", f"(sleep {mark}) & echo there; sleep {mark}"), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, cwd=self.folder, env=clean_environment())
        for _ in range(3):
            self.assertEqual(program.stdout.readline(), "there\n")
        self.assertGreaterEqual(len(alive(f"sleep\0{mark}")), 3)
        start = time.monotonic()
        program.send_signal(number)
        self.assertEqual(program.wait(20), code)
        while alive(mark) and time.monotonic() < start + END_SECONDS:
            time.sleep(0.02)
        self.assertEqual(alive(mark), [])
        self.assertLess(time.monotonic() - start, END_SECONDS)
        program.communicate()

    def test_a_signal_ends_the_ranks_of_all_hosts(self):
        self.end(signal.SIGTERM, 128 + signal.SIGTERM)

    def test_nothing_is_left_when_it_is_killed(self):
        self.end(signal.SIGKILL, -signal.SIGKILL)

    def test_says_when_a_host_is_not_reached(self):
        self.write("refusing", '#!/bin/sh\necho "no route to $1" >&2; exit 255\n', 0o755)
        done = self.run_on_hosts("--", "true", shell="refusing")
        self.assertEqual(done.returncode, 255, done)
        self.assertIn("no route to alpha\n", done.stderr)
        self.assertRegex(done.stderr, r"espalier run: host (alpha \(ranks 0 to 1\)|beta \(rank 2\)) ended with exit code 255")

    def test_refuses(self):
        for text, line in (("'gamma'", "gamma"), ("'gamma 4'", "gamma 4"), ("'gamma slots=0'", "gamma slots=0"),
                           ("'gamma slots=2 x'", "gamma slots=2 x"), ("'beta' is there already, in line 4", "beta slots=1")):
            with open(os.path.join(self.folder, "hosts"), "r+") as file:
                lines = file.read().splitlines()[:4]
                file.seek(0)
                file.truncate()
                file.write("\n".join([*lines, line, ""]))
            self.expect_refused(f"hosts, line 5: {text}")
        self.write("hosts", "# nobody\n")
        self.expect_refused("it names no host")
        self.write("hosts", "al;pha slots=2\n")
        self.expect_refused("host 'al;pha' has letters")
        self.write("hosts", "alpha slots=2\n")
        self.expect_refused("3 ranks are asked for, but its 1 host has 2 slots", "-n", "3")
        self.expect_refused("--hostfile with --backend host", "--backend", "host")
        self.expect_refused("NOT_SET is not set here", "--env", "NOT_SET")
        os.unlink(os.path.join(self.folder, "words"))
        self.expect_refused("/words' cannot be started")
        done = subprocess.run([ESPALIER, "run", "--remote-shell", "ssh", "-n", "1", "--", "true"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("--hostfile", done.stderr)
        done = subprocess.run([ESPALIER, "agent", "x"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("agent: its argument is not what espalier run --hostfile writes", done.stderr)


if __name__ == "__main__":
    unittest.main()
