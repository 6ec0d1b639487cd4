"""What NVMe offload is for, and what it must never do: train what does not fit in memory, and train on bad bytes."""
import os
import shutil
import subprocess
import sys

import scenario

# 63 million parameters: 1.1 GiB of weights, gradients, master weights and moments.
LARGE = scenario.small(
    model__layers=20, model__hidden=512, model__heads=8, precision__compute="bf16", train__global_batch_size=4,
    train__micro_batch_size=2, train__max_steps=2, checkpoint__every=0)
ON_NVME = {"offload.work": "nvme", "offload.grad": "nvme", "offload.optimizer": "nvme", "offload.nvme_path": "."}
LIMIT_KIB = 900_000  # of private memory; LibTorch and the libraries take about 300 MB of it


def limited(kib):
    return ["bash", "-c", f'ulimit -d {kib}; exec "$0" "$@"', scenario.BIN]


def test_a_model_too_large_for_memory_trains_from_nvme(place):
    place.train({**LARGE, "run.name": "memory"}, ranks=1)
    job = place.start("train", place.config({**LARGE, "run.name": "refused"}), ranks=1, program=limited(LIMIT_KIB)).wait()
    scenario.require(job.code == 79 and "cannot reserve" in job.err, f"not refused by name: {job.describe()}")
    place.train({**LARGE, **ON_NVME, "run.name": "nvme"}, ranks=1, program=limited(LIMIT_KIB))
    place.require_equal_runs("runs/nvme", "runs/memory")
    peaks = {name: place.metrics(f"runs/{name}")[-1]["rss_mib_max"] for name in ("memory", "nvme")}
    scenario.require(peaks["nvme"] < peaks["memory"] / 2, f"resident memory: {peaks}")


def test_a_disk_that_is_too_small_is_named_before_anything_is_trained(place):
    if os.geteuid() != 0:
        raise scenario.Skip("mounting a small disk needs root")
    (place.path / "disk").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", place.path / "disk"], check=False)
    if mounted.returncode != 0:
        raise scenario.Skip("mounting is not allowed here")
    try:
        settings = {**LARGE, **ON_NVME, "offload.nvme_path": "disk"}
        job = place.start("train", place.config(settings), ranks=2).wait()
    finally:
        subprocess.run(["umount", place.path / "disk"], check=True)
    scenario.require_equal(job.code, 74, f"exit code: {job.describe()}")
    scenario.require("cannot reserve" in job.err and "in disk for the weights of rank" in job.err and "MiB" in job.err, f"folder and sizes are not named: {job.describe()}")
    scenario.require(not place.checkpoints(), "something was saved")


def test_a_folder_that_cannot_be_is_named(place):
    settings = {**scenario.small(), **ON_NVME, "offload.nvme_path": "text.txt/nvme"}
    job = place.start("train", place.config(settings), ranks=1).wait()
    scenario.require(job.code == 74 and "text.txt/nvme" in job.err, f"not named: {job.describe()}")


def test_nothing_is_left_on_the_disk(place):
    (place.path / "disk").mkdir()
    settings = {**scenario.small(), **ON_NVME, "offload.nvme_path": "disk"}
    place.train(settings, ranks=2)
    job = place.start("train", place.config({**settings, "run.name": "killed", "train.max_steps": 100_000}), ranks=2)
    job.until(lambda: (place.path / "runs/killed/metrics.jsonl").exists(), "training")
    job.process.kill()
    job.process.wait()
    place.clean_up()
    left = [str(path) for path in (place.path / "disk").rglob("*")]
    scenario.require_equal(left, [], "files that stay")
    scenario.require(shutil.disk_usage(place.path / "disk").free > 0, "the disk is full")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
