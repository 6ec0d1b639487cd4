"""A run that is stopped and continued, on other numbers of ranks and with another strategy, is the run that was not."""
import os
import signal
import sys

import scenario

SETTINGS = scenario.small(train__max_steps=20, schedule__total_steps=20, precision__compute="bf16", checkpoint__every=5)


def undisturbed(place):
    place.train({**SETTINGS, "run.name": "whole"}, ranks=4)
    return "runs/whole"


def part(place, stop, ranks, strategy, resume="auto"):
    settings = {**SETTINGS, "train.max_steps": stop, "parallel.strategy": strategy}
    return place.train(settings, "--resume", resume, ranks=ranks)


def test_stops_at_steps_7_and_13_on_4_then_1_then_2_ranks_change_nothing(place):
    whole = undisturbed(place)
    part(place, 7, 4, "zero3")
    scenario.require_equal(place.checkpoints()[-1], "step-00000007", "newest checkpoint")
    job = part(place, 13, 1, "zero3")
    scenario.require("step-00000007" in job.err, f"does not say what it continues from: {job.describe()}")
    part(place, 20, 2, "zero3")
    scenario.require_equal([line["step"] for line in place.metrics()], list(range(1, 21)), "steps in metrics.jsonl")
    place.require_equal_runs("runs/run", whole)
    scenario.require_equal(place.hash_of("runs/run"), place.hash_of(whole), "hash")


def test_ddp_continued_as_zero3_and_back_changes_nothing(place):
    whole = undisturbed(place)
    part(place, 7, 2, "ddp")
    part(place, 13, 4, "zero3")
    part(place, 20, 1, "ddp")
    place.require_equal_runs("runs/run", whole)


def stop_by_signal(place, number, send):
    """A long run is stopped midway by `send(job, number)`; cut to where it would have been stopped, it equals another."""
    settings = scenario.small(train__max_steps=4000, schedule__total_steps=4000, checkpoint__every=0, log__every=1000)
    job = place.start("train", place.config(settings), ranks=2)
    metrics = place.path / "runs/run/metrics.jsonl"
    job.until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 5, "five steps")
    send(job, number)
    job.wait(30)
    scenario.require_equal(job.code, 85, f"exit code after a signal: {job.describe()}")
    stopped = place.metrics()[-1]["step"]
    scenario.require_equal(place.checkpoints(), [f"step-{stopped:08}"], "checkpoints after a signal")
    scenario.require(f"stopped at step {stopped}" in job.err, f"does not say where it stopped: {job.describe()}")
    scenario.require_equal(job.errors(), [], "errors after a signal")
    place.run("ckpt", "verify", "runs/run")
    end = stopped + 5
    shorter = {**settings, "train.max_steps": end}
    place.train(shorter, "--resume", "auto", ranks=1)
    place.train({**shorter, "run.name": "whole"}, ranks=2)
    place.require_equal_runs("runs/run", "runs/whole")


def to_launcher(job, number):
    job.process.send_signal(number)


def to_one_rank(job, number):
    job.until(lambda: 1 in job.rank_pids(), "rank 1")
    signal_rank(job, 1, number)


def signal_rank(job, rank, number):
    os.kill(job.rank_pids()[rank], number)


def test_state_on_nvme_is_saved_and_continued_like_any(place):
    """Saved from disk and loaded into memory, and the other way."""
    disk = {"offload.optimizer": "nvme", "offload.nvme_path": "."}
    settings = scenario.small(train__max_steps=9, checkpoint__every=3, checkpoint__keep=0, precision__compute="bf16")
    place.train({**settings, "run.name": "whole"}, ranks=2)
    for first, second, name in ((disk, {}, "from-disk"), ({}, disk, "to-disk"), (disk, disk, "on-disk")):
        cut = {**settings, "run.name": name}
        place.train({**cut, **first, "train.max_steps": 4, "schedule.total_steps": 9}, ranks=1)
        place.train({**cut, **second}, "--resume", "auto", ranks=4)
        place.require_equal_runs(f"runs/{name}", "runs/whole")


def test_usr1_to_the_launcher_saves_and_stops_with_85(place):
    stop_by_signal(place, signal.SIGUSR1, to_launcher)


def test_term_to_one_rank_saves_and_stops_all_with_85(place):
    stop_by_signal(place, signal.SIGTERM, to_one_rank)


def test_resuming_a_finished_run_does_nothing_and_is_no_error(place):
    place.train({**SETTINGS, "train.max_steps": 4, "checkpoint.every": 0}, ranks=2)
    metrics, digest = place.metrics(), place.hash_of("runs/run")
    checkpoints = {name: status for name, status in place.listing().items() if "checkpoints" in name}
    for ranks in (1, 2):
        job = place.train({**SETTINGS, "train.max_steps": 4, "checkpoint.every": 0}, "--resume", "auto", ranks=ranks)
        scenario.require("done step=4" in job.out, f"no last line: {job.describe()}")
        scenario.require("loss=0.0000" not in job.out, f"a loss that nobody measured: {job.describe()}")
    scenario.require_equal(place.metrics(), metrics, "metrics of a finished run")
    scenario.require_equal(place.hash_of("runs/run"), digest, "hash of a finished run")
    after = {name: status for name, status in place.listing().items() if "checkpoints" in name}
    scenario.require_equal(after, checkpoints, "checkpoints of a finished run")


def test_a_path_continues_from_that_checkpoint(place):
    whole = undisturbed(place)
    settings = {**SETTINGS, "run.name": "branch", "parallel.strategy": "ddp"}
    place.train(settings, "--resume", f"{whole}/checkpoints/step-00000010", ranks=2)
    scenario.require_equal([line["step"] for line in place.metrics("runs/branch")], list(range(11, 21)), "steps")
    scenario.require_equal(place.losses("runs/branch"), place.losses(whole)[10:], "losses from step 11 on")
    place.run("ckpt", "diff", "runs/branch", whole)


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
