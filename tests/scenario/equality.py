"""The promise of reproducible runs: the same losses and weights to the last bit for every strategy, every number of
ranks that divides the work, and every way in which ranks lie on nodes."""
import sys

import scenario

GPT2_BF16 = scenario.small(precision__compute="bf16", train__max_steps=8, train__eval_every=4,
                           train__eval_batches=0)
LLAMA_FP32 = scenario.small(model__type="llama", model__kv_heads=2, model__tied_head=False, train__max_steps=8,
                            train__eval_every=4)


def require_equality(place, settings, layouts, strategies=("ddp", "zero3")):
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


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
