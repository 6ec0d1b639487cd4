"""The promise of reproducible runs: the same losses and weights to the last bit for every strategy, every number of
ranks that divides the work, and every way in which ranks lie on nodes."""
import sys

import scenario

GPT2_BF16 = scenario.small(precision__compute="bf16", train__max_steps=8, train__eval_every=4,
                           train__eval_batches=0)
LLAMA_FP32 = scenario.small(model__type="llama", model__kv_heads=2, model__tied_head=False, train__max_steps=8,
                            train__eval_every=4)


ALL = ("ddp", "zero1", "zero2", "zero3", "hsdp")


def require_equality(place, settings, layouts, strategies=ALL):
    """layouts: (ranks, ranks a simulated node or None). The first run is what all others must equal."""
    first = None
    for strategy in strategies:
        for ranks, per_node in layouts:
            name = f"{strategy}-{ranks}" + (f"-{per_node}-a-node" if per_node else "")
            run = f"{settings['run.dir']}/{name}"
            job = place.train({**settings, "run.name": name, "parallel.strategy": strategy}, ranks=ranks,
                              environment={"TRIREME_TEST_RANKS_PER_NODE": str(per_node)} if per_node else None)
            nodes = ranks // per_node if per_node else 1
            scenario.require(f"{ranks} on {nodes} node" in job.err, f"{run}: other ranks or nodes: {job.describe()}")
            scenario.require("will not equal" not in job.err, f"{run}: equality is given up: {job.describe()}")
            if first is None:
                first = run
            else:
                place.require_equal_runs(run, first)
    scenario.require_equal(place.hash_of(run), place.hash_of(first), f"hash of {run}")
    losses = [float(loss) for loss in place.losses(first)]
    scenario.require(losses[-1] < losses[0] - 0.1, f"the model learns nothing, so equality means little: {losses}")


def test_gpt2_in_bf16_is_equal_on_1_2_and_4_ranks(place):
    require_equality(place, GPT2_BF16, [(1, None), (2, None), (4, None)])


def test_llama_in_fp32_is_equal_on_1_2_and_4_ranks(place):
    require_equality(place, LLAMA_FP32, [(1, None), (2, None), (4, None)])


def test_gpt2_in_bf16_is_equal_across_nodes(place):
    require_equality(place, GPT2_BF16, [(1, None), (4, 2), (4, 1)])


def test_llama_in_fp32_is_equal_across_nodes(place):
    require_equality(place, LLAMA_FP32, [(2, 1), (4, 2)])


def test_numbers_of_micro_batches_that_are_no_powers_of_two_are_equal(place):
    # A text so short that an epoch ends within the run.
    (place.path / "little.txt").write_text(scenario.text_of(6_000))
    for micro_batches, ranks in ((6, (1, 2)), (12, (1, 4))):
        settings = {**GPT2_BF16, "train.global_batch_size": 2 * micro_batches, "run.dir": f"runs-{micro_batches}",
                    "data.train": "little.txt"}
        require_equality(place, settings, [(number, None) for number in ranks])


def test_groups_of_ranks_that_are_smaller_or_larger_than_a_node_are_equal(place):
    """hsdp on four ranks in groups of two: two groups on a node, a group a node, groups that span nodes."""
    settings = {**GPT2_BF16, "parallel.shard_size": 2, "parallel.strategy": "hsdp"}
    require_equality(place, settings, [(4, None), (4, 2), (4, 1)], strategies=("hsdp",))


def test_weights_that_stay_until_the_update_are_equal(place):
    place.train({**GPT2_BF16, "run.name": "one"})
    for strategy in ("zero3", "hsdp"):
        settings = {**GPT2_BF16, "run.name": strategy, "parallel.strategy": strategy,
                    "parallel.reshard_after_forward": False}
        place.train(settings, ranks=4, environment={"TRIREME_TEST_RANKS_PER_NODE": "2"})
        place.require_equal_runs(f"runs/{strategy}", "runs/one")


def test_what_is_recomputed_is_equal(place):
    llama = {**LLAMA_FP32, "model.context": 64}
    for model, settings in (("gpt2", GPT2_BF16), ("llama", llama)):
        place.train({**settings, "run.name": f"{model}-none"})
        for what in ("attention", "full"):
            for strategy, per_node in (("ddp", None), ("zero3", None), ("zero3", "1")):
                run = f"{model}-{what}-{strategy}-{per_node}"
                place.train({**settings, "run.name": run, "train.recompute": what, "parallel.strategy": strategy}, ranks=2,
                            environment={"TRIREME_TEST_RANKS_PER_NODE": per_node} if per_node else None)
                place.require_equal_runs(f"runs/{run}", f"runs/{model}-none")


def test_what_lives_on_nvme_is_equal(place):
    place.train({**GPT2_BF16, "run.name": "memory"})
    for name, what in (("work", ["work"]), ("grad", ["grad"]), ("state", ["optimizer"]), ("all", ["work", "grad", "optimizer"])):
        settings = {**GPT2_BF16, "run.name": name, "offload.nvme_path": ".", **{f"offload.{kind}": "nvme" for kind in what}}
        for per_node in (None, "1"):
            run = name + (per_node or "")
            place.train({**settings, "run.name": run}, ranks=2,
                        environment={"TRIREME_TEST_RANKS_PER_NODE": per_node} if per_node else None)
            place.require_equal_runs(f"runs/{run}", "runs/memory")
            line = place.metrics(f"runs/{run}")[-1]
            scenario.require(line["offload_io_s"] > 0, f"nothing went to disk: {line}")
    place.train({**GPT2_BF16, "run.name": "host", "offload.work": "host", "offload.grad": "host", "offload.optimizer": "host"})
    place.require_equal_runs("runs/host", "runs/memory")


def test_units_do_not_change_a_number(place):
    for units in ("auto", "none", "size:20K", "GPT2Block"):
        settings = {**GPT2_BF16, "run.name": units.replace(":", "-"), "parallel.units": units}
        job = place.start("train", place.config(settings), ranks=2, environment={"TRIREME_TEST_RANKS_PER_NODE": "1"})
        job.wait(60)
        if units == "GPT2Block":
            known = "its classes are " in job.err and "Block" in job.err
            scenario.require(job.code == 64 and known, f"classes are not listed: {job.describe()}")
            continue
        scenario.require_equal(job.code, 0, job.describe())
        scenario.require_equal(place.losses(f"runs/{units.replace(':', '-')}")[0], place.losses("runs/auto")[0], units)


def test_frozen_parameters_and_those_kept_in_fp32_are_equal(place):
    settings = {**GPT2_BF16, "model.frozen": ["wpe", "h\\.0\\."], "precision.keep_fp32": ["ln_"]}
    require_equality(place, settings, [(1, None), (4, 2)])


def test_fp16_is_equal_and_skips_what_overflows_everywhere(place):
    settings = {**GPT2_BF16, "precision.compute": "fp16", "precision.initial_scale": 2.0 ** 20,
                "train.max_steps": 12}
    require_equality(place, settings, [(1, None), (4, 2)])
    lines = place.metrics("runs/ddp-1")
    skipped = [0] + [line["skipped"] for line in lines]
    scenario.require(0 < skipped[-1] < len(lines), f"the scale does not fall below what overflows: {skipped}")
    for i, (line, after) in enumerate(zip(lines, lines[1:])):
        overflowed = skipped[i + 1] > skipped[i]
        expected = line["loss_scale"] / 2 if overflowed else line["loss_scale"]
        scenario.require_equal(after["loss_scale"], expected, f"scale of step {after['step']}")


def test_a_skipped_step_changes_neither_weights_nor_moments(place):
    settings = {**GPT2_BF16, "precision.compute": "fp16", "precision.initial_scale": 2.0 ** 60, "train.eval_every": 0}
    for steps in (1, 2):
        place.train({**settings, "run.name": f"after-{steps}", "train.max_steps": steps,
                     "schedule.total_steps": 8}, ranks=2)
    differences = place.run("ckpt", "diff", "runs/after-1", "runs/after-2", code=1).out
    scenario.require("skipped: 1 and 2" in differences, f"nothing was skipped: {differences}")
    scenario.require("/model/" not in differences and "/optimizer/" not in differences, differences)


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
