"""A rank that stands still, and a rank that fails alone: the others notice, say who and where, and leave in time."""
import os
import resource
import signal
import stat
import sys
import time

import scenario

LONG = scenario.small(train__max_steps=100000, log__every=100000, checkpoint__every=0, run__timeout=3)
ENDS_WITHIN_S = 10


def after_some_steps(place, job, steps=5):
    metrics = place.path / "runs/run/metrics.jsonl"
    job.until(lambda: metrics.exists() and metrics.read_text().count("\n") >= steps, f"{steps} steps")


def stop_one(place, ranks, victim, environment=None, **changes):
    job = place.start("train", place.config({**LONG, **changes}), ranks=ranks, environment=environment)
    after_some_steps(place, job)
    pid = job.rank_pids()[victim]
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    job.wait(60)
    took = time.monotonic() - stopped
    scenario.require(f"rank {victim} (pid {pid}) in '" in job.err, f"nobody says who hung and where: {job.describe()}")
    scenario.require("waited 3 s in '" in job.err, f"nobody says what was waited for: {job.describe()}")
    scenario.require_equal(job.code, 75, f"exit code: {job.describe()}")
    scenario.require(took <= ENDS_WITHIN_S, f"took {took:.1f} s to end: {job.describe()}")
    return job


def test_a_stopped_rank_of_two_is_named(place):
    stop_one(place, 2, 1)


def test_a_stopped_first_rank_is_named(place):
    stop_one(place, 2, 0, **{"parallel.strategy": "ddp"})


def test_a_stopped_rank_on_another_node_is_named(place):
    stop_one(place, 4, 3, environment={"TRIREME_TEST_RANKS_PER_NODE": "2"})


def test_a_short_pause_is_forgiven(place):
    job = place.start("train", place.config({**LONG, "run.timeout": 20}), ranks=2)
    after_some_steps(place, job)
    pid = job.rank_pids()[1]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)
    count = len(place.metrics())
    after_some_steps(place, job, count + 5)
    job.process.send_signal(signal.SIGUSR1)
    job.wait(30)
    scenario.require_equal(job.code, 85, f"exit code: {job.describe()}")


def on_one_rank(place, rank, prefix):
    """A command that runs trireme on every rank, and on this one behind `prefix`."""
    script = place.path / "wrapper"
    script.write_text("#!/bin/sh\n"
                      f"case \"${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}\" in {rank}) exec {prefix} '{scenario.BIN}' \"$@\" ;; esac\n"
                      f"exec '{scenario.BIN}' \"$@\"\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [str(script)]


def require_own_message(job, code, rank, *phrases):
    scenario.require_equal(job.code, code, f"exit code: {job.describe()}")
    about = [error for error in job.errors() if all(phrase in error for phrase in phrases)]
    scenario.require_equal(len(about), 1, f"times that the failure is told: {job.describe()}")
    scenario.require(f"rank {rank}" in about[0], f"does not name the rank: {job.describe()}")
    scenario.require_equal(len(job.errors()), 1, f"error reports: {job.describe()}")
    scenario.require(job.seconds <= ENDS_WITHIN_S + 10, f"took {job.seconds:.1f} s from start to end: {job.describe()}")


def test_a_rank_that_may_not_write_large_files_fails_the_save_with_its_own_message(place):
    # A limit on the size of files, as a quota would be, set after the start, which needs larger ones. The signal that
    # would end the process is ignored, so that the write itself fails.
    settings = {**LONG, "checkpoint.every": 200, "train.max_steps": 201, "run.timeout": 60}
    job = place.start("train", place.config(settings), ranks=2, program=on_one_rank(place, 1, "env --ignore-signal=XFSZ"))
    after_some_steps(place, job)
    resource.prlimit(job.rank_pids()[1], resource.RLIMIT_FSIZE, (102400, 102400))
    job.wait(60)
    require_own_message(job, 74, 1, "state.h5", "File too large")
    scenario.require_equal(place.checkpoints(), [], "checkpoints after a failed save")
    left = [path.name for path in (place.path / "runs/run/checkpoints").iterdir()]
    scenario.require_equal(left, [], "remains of a failed save")


def test_a_rank_that_cannot_see_the_data_says_so_for_all(place):
    # Another working directory on one rank: the file is there for all but it.
    (place.path / "elsewhere").mkdir()
    prefix = "env --chdir=elsewhere"
    config = place.path / place.config(LONG)
    job = place.run("train", config, ranks=2, program=on_one_rank(place, 1, prefix), code=None)
    require_own_message(job, 64, 1, "text.txt", "No such file")
    scenario.require(not (place.path / "runs").exists() or not list((place.path / "runs").rglob("metrics.jsonl")),
                     "a step ran or metrics were begun")


def test_a_rank_without_memory_says_so(place):
    # Enough address space to start in, not enough for a large model.
    prefix = "prlimit --as=3000000000"
    config = place.config({**LONG, "model.hidden": 2048, "model.layers": 12, "model.heads": 16, "run.timeout": 30})
    job = place.run("train", config, ranks=2, program=on_one_rank(place, 1, prefix), code=None)
    require_own_message(job, 79, 1, "out of memory")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
