"""What `trireme plan` says against what runs use."""
import json
import re
import sys

import scenario

SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SETTINGS = scenario.small(model__layers=4, model__hidden=128, precision__compute="bf16", train__max_steps=1, schedule__warmup_steps=0)


def plan_of(place, settings, ranks, per_node):
    answer = place.run("plan", place.config(settings), "-n", ranks, "--ranks-per-node", per_node, "--json").out
    return json.loads(answer)


def told_by(job):
    """The banner's sizes of rank 0."""
    line = re.search(r"memory a rank +(.*)", job.err).group(1)
    return {name: float(number) * SIZES[unit]
            for name, number, unit in re.findall(r"(weights|gradients|master|moments|buffers|on disk) ([\d.]+) (\w+)", line)}


def require_near(found, expected, what):
    scenario.require(abs(found - expected) <= 0.05 * max(found, expected) + 4096, f"{what}: {found} used, {expected} planned")


def test_memory_is_as_planned_for_every_strategy(place):
    for strategy in ("ddp", "zero1", "zero2", "zero3", "hsdp"):
        for per_node in (4, 2):
            settings = {**SETTINGS, "parallel.strategy": strategy, "run.name": f"{strategy}-{per_node}"}
            plan = plan_of(place, settings, 4, per_node)["by_rank"][0]
            job = place.train(settings, ranks=4, environment={"TRIREME_TEST_RANKS_PER_NODE": str(per_node)})
            told = told_by(job)
            for name in ("weights", "gradients", "master", "moments", "buffers"):
                require_near(told[name], plan[name], f"{name} of {strategy}, {per_node} a node")


def test_offload_and_checkpoints_are_as_planned(place):
    settings = {**SETTINGS, "offload.work": "nvme", "offload.grad": "nvme", "offload.optimizer": "nvme", "offload.nvme_path": "."}
    plan = plan_of(place, settings, 2, 2)
    told = told_by(place.train(settings, ranks=2))
    require_near(told["buffers"], plan["by_rank"][0]["buffers"], "buffers")
    require_near(told["on disk"], plan["by_rank"][0]["nvme"], "disk")
    size = next((place.path / "runs/run/checkpoints").glob("*/state.h5")).stat().st_size
    scenario.require(plan["checkpoint"] <= size <= 1.1 * plan["checkpoint"] + 300_000,
                     f"checkpoint of {size}, planned {plan['checkpoint']}")


def test_the_words_name_what_matters(place):
    text = place.run("estimate-memory", place.config(SETTINGS), "-n", 4).out
    for word in ("weights", "gradients", "master weights", "moments", "activations (by formula)", "a checkpoint", "dtype"):
        scenario.require(word in text, f"no {word}: {text}")
    job = place.start("plan", place.config(SETTINGS), "-n", 16).wait()
    scenario.require_equal(job.code, 64, f"more ranks than work: {job.describe()}")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
