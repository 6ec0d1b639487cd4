"""trireme launch: N processes asked for are N ranks of one job, or an error; what ranks print is labelled, and the first
error of the rank that failed is the last thing on the screen. With it: files of other programs on real runs."""
import json
import sys
import time

import scenario
from scenario import require, require_equal

ACCELERATE = """distributed_type: FSDP
num_processes: {processes}
mixed_precision: 'no'
fsdp_config:
  fsdp_version: 2
"""


def test_newcomer_in_a_minute(place):
    """From config default to a launched run of two ranks."""
    begin = time.monotonic()
    job = place.run("config", "default", "--data", "text.txt")
    require("trireme launch -n 2 train trireme.yaml" in job.err, f"no next command: {job.describe()}")
    job = place.run("launch", "-n", "2", "train", "trireme.yaml", "--set", "train.max_steps=2",
                    "--set", "schedule.warmup_steps=1", "--set", "train.eval_every=0")
    require(time.monotonic() - begin < 60, "more than a minute")
    require("rank 0: done step=2" in job.out, f"not labelled, or not done: {job.describe()}")
    config = (place.path / "runs/run/config.yaml").read_text()
    require("trireme.yaml:" in config, "no source of values")
    place.run("config", "default", code=2)  # never replaced


def test_ranks_of_one_job(place):
    """The program on each rank is told the same size: a sharded run has two ranks on one machine."""
    place.config(scenario.small(train__max_steps=2))
    place.run("train", "job.yaml", "--set", "run.name=alone")
    job = place.run("launch", "-n", "2", "--use_fsdp", "train", "job.yaml")
    require("rank 0: done step=2" in job.out and "done" not in job.out.replace("rank 0: done", ""),
            f"not one job: {job.describe()}")
    place.require_equal_runs("runs/run", "runs/alone")


def test_refuses_what_cannot_be_that_job(place):
    place.config()
    (place.path / "four.yaml").write_text(ACCELERATE.format(processes=4))
    for arguments, words in [
        (["-n", "500", "train", "job.yaml"], ["500 processes", "cores"]),
        (["train", "job.yaml"], ["how many processes"]),
        (["-n", "2"], ["nothing to start"]),
        (["-n", "2", "--num_machines", "2", "train", "job.yaml"], ["2 machines", "none is named"]),
        (["-n", "9", "--hosts", "a:4,b:4", "train", "job.yaml"], ["9 processes do not fit the 8 places"]),
        (["-n", "2", "--multi_gpu", "train", "job.yaml"], ["multi_gpu"]),
        (["-n", "2", "--accelerate", "four.yaml", "train", "job.yaml"], ["contradicts", "four.yaml"]),
        (["-n", "2", "--use_fsdp", "hostname"], ["do not reach"]),
        (["-n", "2", "--use_fsdp", "--use_deepspeed", "train", "job.yaml"], ["do not go together"]),
    ]:
        job = place.run("launch", *arguments, code=2)
        for word in words:
            require(word in job.err, f"{word!r} is missing: {job.describe()}")
    job = place.run("train", "job.yaml", "--accelerate", "four.yaml", code=64)
    require("four.yaml:2: num_processes: 4 processes asked for, but this job has 1" in job.err, job.describe())
    require(not (place.path / "runs").exists(), "something was started")


def test_first_error_is_last(place):
    """The failing rank's exit code and error, behind everything that the launcher prints."""
    (place.path / "fails.sh").write_text(
        '#!/bin/sh\nif [ "$OMPI_COMM_WORLD_RANK$PMI_RANK" = 1 ]; then\n'
        '  echo "trireme: error (io): the disk is gone" >&2\n  echo "  hint: another disk" >&2\n  exit 74\nfi\nsleep 1\n')
    job = place.run("launch", "-n", "2", "--oversubscribe", "sh", "fails.sh", code=74)
    require_equal(job.err.rstrip().splitlines()[-2:],
                  ["rank 1: trireme: error (io): the disk is gone", "rank 1:   hint: another disk"], "last lines")


def test_restarts_until_it_works(place):
    (place.path / "once.sh").write_text(
        '#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK$PMI_RANK" = 0 ] || exit 0\n[ -e again ] && exit 0\ntouch again\nexit 75\n')
    job = place.run("launch", "-n", "2", "--oversubscribe", "--max_restarts", "2", "sh", "once.sh")
    require("starting again, 1 of 2" in job.err, job.describe())


def test_hosts_and_binding(place):
    (place.path / "hosts").write_text("# ours\nn1 slots=2\nn2 slots=2\n")
    place.config()
    for where in (["--hosts", "n1:2,n2:2"], ["--hostfile", "hosts"]):
        job = place.run("launch", *where, "--bind-to", "socket", "--print", "train", "job.yaml")
        for word in ("-n 4", "n1:2,n2:2", "socket"):
            require(word in job.out, f"{word!r} is missing: {job.describe()}")


def test_files_of_other_programs_train(place):
    """Accelerate's and TrainingArguments' files on two ranks; the same run from converted YAML is equal to the bit."""
    place.config({key: value for key, value in scenario.small().items()
                  if key.split(".")[0] in ("model", "data", "log")})
    (place.path / "two.yaml").write_text(ACCELERATE.format(processes=2))
    (place.path / "args.json").write_text(json.dumps({
        "output_dir": "runs/run", "max_steps": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "warmup_steps": 1, "learning_rate": 1e-3}))
    place.run("launch", "--accelerate", "two.yaml", "train", "job.yaml", "--training-arguments", "args.json")
    shown = (place.path / "runs/run/config.yaml").read_text()
    for line in ("global_batch_size: 8", "# two.yaml:3 (mixed_precision)", "# args.json:1 (learning_rate)"):
        require(line in shown, f"{line!r} is not in\n{shown}")
    place.run("config", "convert", "args.json", "-n", "2", "-o", "converted.yaml")
    place.run("train", "job.yaml", "converted.yaml", "--set", "run.name=again", "--set", "parallel.units=none")
    place.require_equal_runs("runs/run", "runs/again")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
