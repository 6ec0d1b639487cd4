"""Every optimizer, continued on other numbers of ranks and with another strategy, is the run that was not stopped."""
import sys

import scenario

SETTINGS = scenario.small(
    train__max_steps=4, schedule__total_steps=4, schedule__warmup_steps=1, precision__compute="bf16",
    train__global_batch_size=8, checkpoint__every=0)


def resumes_to_the_same_bits(place, **changes):
    settings = {**SETTINGS, **{key.replace("__", "."): value for key, value in changes.items()}}
    place.train({**settings, "run.name": "whole"}, ranks=2)
    place.train({**settings, "train.max_steps": 2, "parallel.strategy": "ddp"}, ranks=1)
    place.train({**settings, "parallel.strategy": "zero3"}, "--resume", "auto", ranks=4)
    place.require_equal_runs("runs/run", "runs/whole")
    scenario.require_equal(place.hash_of("runs/run"), place.hash_of("runs/whole"), "hash")
    losses = place.losses("runs/run")
    scenario.require(losses[-1] < losses[0], f"does not learn: {losses}")


def test_adamw_with_bf16_moments_groups_and_clipping(place):
    groups = [{"match": "wte|embed", "lr_multiplier": 0.5, "clip_norm": 0.1}, {"match": "bias$", "weight_decay": 0.01}]
    resumes_to_the_same_bits(
        place, optimizer__amsgrad=True, optimizer__clip_value=1e-3, optimizer__groups=groups, precision__moments="bf16")


def test_sgd_with_momentum_over_one_cycle(place):
    resumes_to_the_same_bits(
        place, optimizer__type="sgd", optimizer__lr=0.3, optimizer__momentum=0.9, optimizer__nesterov=True,
        schedule__type="one_cycle", schedule__warmup_steps=0)


def test_adagrad_with_an_initial_sum(place):
    resumes_to_the_same_bits(place, optimizer__type="adagrad", optimizer__lr=0.02, optimizer__initial_accumulator=0.1)


def test_lion_that_follows_the_evaluation_loss(place):
    resumes_to_the_same_bits(
        place, optimizer__type="lion", optimizer__lr=1e-3, train__eval_every=1, train__eval_batches=1,
        schedule__type="greedy", schedule__warmup_steps=0, schedule__options={"patience": 0, "min_lr": 1e-4, "factor": 0.5})
    rates = [line["lr"] for line in place.metrics("runs/run")]
    scenario.require(len(set(rates)) > 1, f"the rate follows nothing: {rates}")


def test_adafactor_whose_statistics_are_spread_over_ranks(place):
    resumes_to_the_same_bits(
        place, optimizer__type="adafactor", optimizer__momentum=0.9, optimizer__scale_parameter=True, optimizer__lr=0.05)


def test_weights_alone_start_a_run_with_a_fresh_optimizer(place):
    place.train({**SETTINGS, "optimizer.type": "lion", "optimizer.lr": 1e-3, "train.max_steps": 3}, ranks=2)
    place.run("ckpt", "export", "runs/run", "--to", "hf")
    place.run("ckpt", "import", "hf", "--to", "imported")
    job = place.train({**SETTINGS, "run.name": "tuned"}, "--resume", "imported/step-00000000", ranks=2)
    scenario.require("holds weights alone" in job.err, job.describe())
    steps = [line["step"] for line in place.metrics("runs/tuned")]
    scenario.require_equal(steps, [1, 2, 3, 4], "steps")
    first = place.losses("runs/run")[0]
    scenario.require(place.losses("runs/tuned")[0] < first, "the weights are not those that were trained")


def test_gradients_that_stay_infinite_end_the_run_by_name(place):
    settings = {**SETTINGS, "optimizer.type": "sgd", "optimizer.lr": 1000, "optimizer.clip_norm": 0,
                "optimizer.weight_decay": 100, "schedule.type": "constant", "schedule.warmup_steps": 0,
                "train.max_steps": 60, "schedule.total_steps": 60, "precision.max_skips": 2}
    job = place.start("train", place.config(settings), ranks=2)
    job.wait(60)
    scenario.require_equal(job.code, 64, f"exit code: {job.describe()}")
    scenario.require("gradients were not finite for 2 steps in a row, first in " in job.err, job.describe())


def test_state_of_another_optimizer_is_refused_by_name(place):
    place.train({**SETTINGS, "train.max_steps": 1, "optimizer.type": "lion"}, ranks=1)
    job = place.start("train", place.config({**SETTINGS, "optimizer.type": "adamw"}), "--resume", "auto", ranks=1)
    job.wait(60)
    scenario.require_equal(job.code, 64, f"exit code: {job.describe()}")
    scenario.require("checkpoint of another optimizer: it has no /optimizer/exp_avg_sq/" in job.err, job.describe())


def test_a_cycle_of_a_momentum_that_there_is_not_is_refused(place):
    settings = {**SETTINGS, "optimizer.type": "adagrad", "schedule.type": "one_cycle", "schedule.warmup_steps": 0}
    job = place.start("train", place.config(settings), "--dry-run", ranks=1)
    job.wait(60)
    scenario.require_equal(job.code, 64, f"exit code: {job.describe()}")
    scenario.require("schedule.options: {cycle_momentum: false}" in job.err, job.describe())
    settings["schedule.options"] = {"cycle_momentum": False}
    place.train({**settings, "train.max_steps": 2}, ranks=1)


def test_a_group_that_matches_nothing_is_refused(place):
    settings = {**SETTINGS, "optimizer.groups": [{"match": "layernorm", "weight_decay": 0.5}]}
    job = place.start("train", place.config(settings), ranks=1)
    job.wait(60)
    scenario.require_equal(job.code, 64, f"exit code: {job.describe()}")
    scenario.require("optimizer.groups.0.match: 'layernorm' matches no parameter" in job.err, job.describe())


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
