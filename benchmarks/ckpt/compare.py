#!/usr/bin/env python3
"""Saves and loads with trireme on 2 ranks, in turn with DCP, torch.save and safetensors, and prints medians and spread.

    compare.py FOLDER [--bench PROGRAM] [--python PYTHON] [--bytes 1500000000] [--rounds 5] [--json]

PROGRAM is build/release/bin/trireme, or io_bench, which needs no LibTorch. PYTHON has torch and safetensors; without it
trireme is measured alone, against the raw disk. All programs alternate, so that a disk whose speed wanders treats them
alike. A save counts until it is durable; a load starts with nothing in the page cache.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def last_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{' '.join(map(str, command))} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def trireme(args):
    """Returns GB/s by name, and what the measurement says of machine and build."""
    program = pathlib.Path(args.bench)
    own = [program, args.folder, args.bytes, 3]
    if program.name == "trireme":
        own = [program, "bench", "io", args.folder, "--size", args.bytes, "--runs", 3, "--json"]
    measured = last_json(["mpirun", "--oversubscribe", "-np", "2", *map(str, own)])
    return {row["what"]: row["gb_per_s"] for row in measured["rows"]}, measured["context"]


def peer(args, method):
    own = [str(HERE / "peers.py"), method, args.folder, str(args.bytes)]
    start = ["-m", "torch.distributed.run", "--nproc_per_node", "2"] if method == "dcp" else []
    row = last_json([args.python, *start, *own])
    return {f"{method} {what}": row["bytes"] / row[what] / 1e9 for what in ("save", "load")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--bench", default=ROOT / "build/release/bin/trireme")
    parser.add_argument("--python")
    parser.add_argument("--bytes", type=int, default=1_500_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if os.geteuid() == 0:
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    rates = {}
    for number in range(args.rounds):
        rows, context = trireme(args)
        for method in ("dcp", "torch.save", "safetensors") if args.python else ():
            rows.update(peer(args, method))
        for name, rate in rows.items():
            rates.setdefault(name, []).append(rate)
        print(f"round {number + 1}: " + ", ".join(f"{name} {rate:.2f}" for name, rate in rows.items()), file=sys.stderr)
    if args.json:
        print(json.dumps({"context": context, "gb_per_s": rates, "command": sys.argv}))
        return
    print(f"{time.strftime('%Y-%m-%d')}, {context['cpu']}, {context['cores']} cores, {context['file_system']}, "
          f"{platform.platform()}, {args.bytes / 1e9:.2f} GB, {args.rounds} rounds in turn, load {os.getloadavg()[0]:.1f}")
    for name, values in rates.items():
        ours = statistics.median(rates["load" if name.endswith(("load", "read")) else "save"])
        print(f"{name:18} median {statistics.median(values):5.2f} GB/s ({min(values):.2f} to {max(values):.2f})   "
              f"trireme is {ours / statistics.median(values):.2f} times that")


if __name__ == "__main__":
    main()
