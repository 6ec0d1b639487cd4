#!/usr/bin/env python3
"""Kills one rank of a saving job at a random time, again and again, and lets one hang: no save that was reported is lost.

    kill_ranks.py SAVE_FOREVER, with TRIREME_MPIRUN set. TRIREME_KILL_RUNS says how often (default 6).

Every time another number of ranks goes on from what is there, and another one reads it.
"""
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

RANKS = (2, 3, 1, 4)
MPIRUN = shlex.split(os.environ.get("TRIREME_MPIRUN", "mpirun"))


def command(ranks, *arguments):
    return [*MPIRUN, "-np", str(ranks), *map(str, arguments)]


def save_until_killed(program, folder, ranks, first, dice):
    """Returns the last step that was reported as saved, or first - 1."""
    job = subprocess.Popen(command(ranks, program, folder, first), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines, ready = [], threading.Event()

    def listen():
        for line in job.stdout:
            lines.append(line)
            if sum(one.startswith("rank") for one in lines) == ranks:
                ready.set()
        ready.set()

    listener = threading.Thread(target=listen)
    listener.start()
    errors = threading.Thread(target=job.stderr.read)
    errors.start()
    ready.wait(60)
    time.sleep(dice.uniform(0, 0.6))
    pids = re.findall(r"pid (\d+)", "".join(lines))
    if len(pids) != ranks:
        sys.exit(f"kill_ranks.py: {ranks} ranks, but they said {lines}")
    os.kill(int(dice.choice(pids)), signal.SIGKILL)
    job.wait(60)
    listener.join()
    errors.join()
    return max([first - 1, *map(int, re.findall(r"saved (\d+)", "".join(lines)))])


def loaded(program, folder, ranks):
    done = subprocess.run(command(ranks, program, folder, "check"), capture_output=True, text=True, timeout=60)
    found = re.search(r"loaded (-?\d+)", done.stdout)
    if done.returncode != 0 or not found or "warning" in done.stdout:
        sys.exit(f"kill_ranks.py: reading on {ranks} ranks: {done.stdout}{done.stderr}")
    return int(found[1])


def hang(program, folder):
    """One rank's disk does not answer: the others say so, with its number, and the old checkpoint stays."""
    before = loaded(program, folder, 1)
    start = time.monotonic()
    done = subprocess.run(command(3, program, folder, "hang"), capture_output=True, text=True, timeout=60)
    seconds = time.monotonic() - start
    told = re.findall(r"timeout error: .*rank 2", done.stdout)
    if not told or "saved" in done.stdout or seconds > 20:
        sys.exit(f"kill_ranks.py: a disk that hangs, after {seconds:.1f} s: {done.stdout}{done.stderr}")
    after = loaded(program, folder, 2)
    if after != before:
        sys.exit(f"kill_ranks.py: step {before} was there before the hang, {after} afterwards")


def main(program):
    runs = int(os.environ.get("TRIREME_KILL_RUNS", "6"))
    dice = random.Random(20260801)
    done = 0
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent, "checkpoints")
        for run in range(runs):
            reported = save_until_killed(program, folder, RANKS[run % len(RANKS)], done + 1, dice)
            found = loaded(program, folder, RANKS[(run + 1) % len(RANKS)])
            found = max(found, 0)
            if not reported <= found <= reported + 1:
                sys.exit(f"kill_ranks.py: run {run}: step {reported} was reported, step {found} is there")
            done = found
        hang(program, folder)
    print(f"{runs} kills of a rank, {done} steps saved, none lost")


main(sys.argv[1])
