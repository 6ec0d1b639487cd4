#!/usr/bin/env python3
"""Encoding on one core: bin/bench/tokenizer_bench in turn with Hugging Face tokenizers, in one run, for each tokenizer
file. The ids must be equal. Needs a Python with the package tokenizers.

  compare.py BENCH TEXT TOKENIZER.json.. [--rounds 7]
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402


def checksum_of(batches):
    checksum = 0
    for ids in batches:
        for one in ids:
            checksum = (checksum * 31 + one + 1) % 1000003
    return checksum


def compare(arguments, path):
    with open(arguments.text, encoding="utf-8", newline="\n") as file:
        lines = file.read().removesuffix("\n").split("\n")
    peer = tokenizers.Tokenizer.from_file(path)
    ours = subprocess.Popen([arguments.bench, path, arguments.text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    seconds = {"ours": [], "peer": []}
    for number in range(arguments.rounds):
        start = time.perf_counter()
        encoded = peer.encode_batch_fast(lines)
        seconds["peer"].append(time.perf_counter() - start)
        ours.stdin.write("again\n")
        ours.stdin.flush()
        took, count, checksum = ours.stdout.readline().split()
        seconds["ours"].append(float(took))
        if number == 0 and int(checksum) != checksum_of(one.ids for one in encoded):
            sys.exit(f"{path}: the ids differ")
    ours.stdin.close()
    ours.wait()
    size = os.path.getsize(arguments.text) / 1e6
    rate = {name: size / statistics.median(all) for name, all in seconds.items()}
    spread = {name: f"{size / max(all):.1f}..{size / min(all):.1f}" for name, all in seconds.items()}
    print(f"{path}: {count} ids equal; MB/s, median of {arguments.rounds}: ours {rate['ours']:.1f} ({spread['ours']}), "
          f"tokenizers {tokenizers.__version__} {rate['peer']:.1f} ({spread['peer']}): {rate['ours'] / rate['peer']:.2f} times")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("text")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for path in arguments.files:
        compare(arguments, path)


if __name__ == "__main__":
    main()
