#!/usr/bin/env python3
"""Trains GPT-2 S with trireme on 2 ranks, in turn with other programs, and prints medians and spread.

    compare.py --text FILE [--rounds 5] [--steps 14] [--warmup 4] [--set a.b=v ..] [--other NAME=COMMAND ..] [--json]

S: 6 layers, 384 wide, 6 heads, context 256, 256 tokens in the vocabulary, 16 sequences a step, bf16.
tokens/s is wall-clock time over the steps after the warm-up. ready is the time from the start of the launcher until
weights are placed and the first batch is in memory. An other COMMAND trains the same shape and prints as its last line
one JSON object with "tokens_per_second" and "ready_seconds". All programs alternate, so that a machine whose speed
wanders treats them alike; rounds are listed too, since a median hides what it hides.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parents[2]
TOKENS_PER_STEP = 16 * 256


def run_trireme(args):
    """Returns tokens/s and seconds to ready, from the moments at which lines arrive on standard error."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"run.dir={folder}", "run.name=bench", f"data.train={pathlib.Path(args.text).resolve()}",
                    f"train.max_steps={args.steps}", "train.eval_every=0", "checkpoint.every=0", "log.every=1",
                    "schedule.warmup_steps=0", *args.set]
        command = ["mpirun", "--oversubscribe", "-np", str(args.ranks), str(args.trireme), "train",
                   str(HERE / "share/configs/demo.yaml")]
        for setting in settings:
            command += ["--set", setting]
        start = time.perf_counter()
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        ready, ends, lines = None, {}, []
        for line in process.stderr:
            now = time.perf_counter() - start
            lines.append(line)
            if "ready " in line and ready is None:
                ready = now
            if found := re.search(r"step +(\d+)/", line):
                ends[int(found[1])] = now
        if process.wait() != 0:
            sys.exit(f"trireme failed:\n{''.join(lines[-20:])}")
        timed = ends[args.steps] - ends[args.warmup]
        return {"tokens_per_second": TOKENS_PER_STEP * (args.steps - args.warmup) / timed, "ready_seconds": ready}


def run_other(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        sys.exit(f"{command} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--trireme", default=HERE / "build/release/bin/trireme")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not shutil.which("mpirun"):
        sys.exit("no mpirun on PATH")
    if os.geteuid() == 0:
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    programs = {"trireme": lambda: run_trireme(args)}
    for other in args.other:
        name, command = other.split("=", 1)
        programs[name] = lambda command=command: run_other(command)

    results = {name: [] for name in programs}
    for number in range(args.rounds):
        for name, program in programs.items():
            result = program()
            results[name].append(result)
            print(f"round {number + 1} {name}: {result['tokens_per_second']:.0f} tokens/s, "
                  f"ready after {result['ready_seconds']:.2f} s", file=sys.stderr)
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    context = {"date": time.strftime("%Y-%m-%d"), "cpu": cpu, "cores": os.cpu_count(), "system": platform.platform(),
               "load": os.getloadavg()[0], "command": sys.argv, "rounds": results}
    if args.json:
        print(json.dumps(context))
        return
    print(f"{context['date']}, {cpu}, {context['cores']} cores, {args.rounds} rounds in turn, load {context['load']:.1f}")
    for name, rows in results.items():
        rate = sorted(row["tokens_per_second"] for row in rows)
        ready = sorted(row["ready_seconds"] for row in rows)
        print(f"{name:24} tokens/s median {statistics.median(rate):7.0f} ({rate[0]:.0f} to {rate[-1]:.0f})   "
              f"ready median {statistics.median(ready):6.2f} s ({ready[0]:.2f} to {ready[-1]:.2f})")


if __name__ == "__main__":
    main()
