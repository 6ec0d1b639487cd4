"""Three ranks, which divide neither the batch nor the tree of sums: it runs, says that equality does not hold and why,
stays within rounding of one rank, and its checkpoint is as good as any."""
import sys

import scenario

SETTINGS = scenario.small(train__max_steps=20, schedule__total_steps=20, checkpoint__every=0, optimizer__lr=3e-4)


def test_three_ranks_say_why_equality_does_not_hold_and_agree_to_1e_5(place):
    job = place.train({**SETTINGS, "run.name": "one"})
    scenario.require("will not equal" not in job.err, f"one rank warns of inequality: {job.describe()}")
    expected = [line["loss"] for line in place.metrics("runs/one")]
    for strategy in ("ddp", "zero3"):
        job = place.train({**SETTINGS, "run.name": strategy, "parallel.strategy": strategy}, ranks=3)
        scenario.require("will not equal" in job.err and "3 ranks" in job.err, f"no reason is given: {job.describe()}")
        scenario.require_equal(job.err.count("will not equal"), 1, "times that it is said")
        found = [line["loss"] for line in place.metrics(f"runs/{strategy}")]
        scenario.require_equal(len(found), 20, "steps")
        for step, (ours, theirs) in enumerate(zip(found, expected, strict=True), 1):
            apart = abs(ours - theirs) / theirs
            scenario.require(apart <= 1e-5, f"{strategy}: loss of step {step} is {ours}, not {theirs}: {apart:.2g} apart")


def test_three_simulated_nodes_run_too(place):
    for per_node in (1, 2):
        name = f"nodes-of-{per_node}"
        place.train({**SETTINGS, "run.name": name, "train.max_steps": 5}, ranks=3,
                    environment={"TRIREME_TEST_RANKS_PER_NODE": str(per_node)})
        scenario.require_equal(len(place.losses(f"runs/{name}")), 5, "steps")


def test_two_ranks_continue_what_three_began(place):
    place.train({**SETTINGS, "train.max_steps": 9}, ranks=3)
    job = place.train(SETTINGS, "--resume", "auto", ranks=2)
    scenario.require("step-00000009" in job.err, f"does not continue from step 9: {job.describe()}")
    place.train({**SETTINGS, "run.name": "one"})
    expected = [float(loss) for loss in place.losses("runs/one")]
    for step, (ours, theirs) in enumerate(zip(map(float, place.losses()), expected, strict=True), 1):
        scenario.require(abs(ours - theirs) <= 1e-5 * theirs, f"loss of step {step} is {ours}, not {theirs}")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
