"""kill -9 of a random rank at a random moment while every step is saved: the job ends soon and says whose fault it was,
and the run can be continued to the same end. Every trial is seeded; the seed is in the message of a failure."""
import os
import random
import signal
import sys
import time

import scenario

# Training and saving of 20 steps takes about a second; trials spread their blows over all of it.
SETTINGS = scenario.small(train__max_steps=20, checkpoint__every=1, checkpoint__keep=2, log__every=100)
TRIALS = 7
ENDS_WITHIN_S = 10


def one_trial(place, trial, whole_seconds):
    draw = random.Random(trial)
    ranks, victim_share = draw.choice([2, 2, 3]), draw.random()
    victim, delay = int(victim_share * ranks), draw.random() * whole_seconds
    name = f"trial-{trial}"
    story = f"trial {trial}: rank {victim} of {ranks}, {delay:.3f} s after the first step"
    settings = {**SETTINGS, "run.name": name, "parallel.strategy": draw.choice(["ddp", "zero3"])}
    job = place.start("train", place.config(settings), ranks=ranks)
    metrics = place.path / f"runs/{name}/metrics.jsonl"
    job.until(lambda: metrics.exists() and metrics.stat().st_size > 0, "the first step")
    pids = job.rank_pids()
    time.sleep(delay)
    alive = victim in pids and job.process.poll() is None
    if alive:
        os.kill(pids[victim], signal.SIGKILL)
    blow = time.monotonic()
    job.wait(60)
    took = time.monotonic() - blow
    # A blow after the last save may find a process that has nothing left to lose.
    if job.code != 0:
        scenario.require(took <= ENDS_WITHIN_S, f"{story}: the job took {took:.1f} s to end: {job.describe()}")
        scenario.require(f"rank {victim}" in job.err, f"{story}: nobody names the rank: {job.describe()}")
        scenario.require("Internal" not in job.err and "(internal" not in job.err, f"{story}: {job.describe()}")
    reached = len(place.checkpoints(f"runs/{name}"))
    resumed = place.train(settings, "--resume", "auto", ranks=draw.choice([1, 2]))
    scenario.require("not usable" not in resumed.err, f"{story}: left a checkpoint that is not usable: {resumed.describe()}")
    if ranks != 3:
        place.require_equal_runs(f"runs/{name}", "runs/whole")
    scenario.require_equal(len(place.losses(f"runs/{name}")), 20, f"{story}: steps")
    left = [path.name for path in (place.path / f"runs/{name}/checkpoints").iterdir()]
    scenario.require(all("." not in file for file in left), f"{story}: remains are never removed: {left}")
    return f"{story}: exit code {job.code} after {took:.1f} s, {reached} checkpoints"


def test_a_killed_rank_ends_the_job_and_the_run_goes_on_to_the_same_end(place):
    place.train({**SETTINGS, "run.name": "whole"}, ranks=2)
    folders = [path.stat().st_mtime for path in (place.path / "runs/whole/checkpoints").iterdir()]
    seconds = max(folders) - (place.path / "runs/whole/config.yaml").stat().st_mtime
    stories = [one_trial(place, trial, seconds) for trial in range(TRIALS)]
    print("\n".join(stories))
    killed = sum("exit code 0" not in story for story in stories)
    scenario.require(killed >= TRIALS // 2, "too few blows hit a running job:\n" + "\n".join(stories))


def test_a_rank_that_dies_before_the_first_step_ends_the_job(place):
    job = place.start("train", place.config(SETTINGS), ranks=2)
    job.until(lambda: 1 in job.rank_pids(), "rank 1")
    time.sleep(0.2)
    os.kill(job.rank_pids()[1], signal.SIGKILL)
    blow = time.monotonic()
    job.wait(60)
    scenario.require(job.code != 0, f"a killed rank is no success: {job.describe()}")
    scenario.require(time.monotonic() - blow <= ENDS_WITHIN_S, f"took too long to end: {job.describe()}")
    place.train(SETTINGS, "--resume", "auto", ranks=2)


def test_a_killed_launcher_leaves_no_ranks_behind(place):
    job = place.start("train", place.config({**SETTINGS, "train.max_steps": 100000, "checkpoint.every": 100}), ranks=2)
    metrics = place.path / "runs/run/metrics.jsonl"
    job.until(lambda: metrics.exists() and metrics.stat().st_size > 0, "the first step")
    job.process.kill()
    job.wait(10)
    end = time.monotonic() + ENDS_WITHIN_S
    while job.rank_pids():
        scenario.require(time.monotonic() < end, f"ranks {job.rank_pids()} live on: {job.describe()}")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
