"""Damaged checkpoints: what is wrong is named, the one before is used, and the run comes to the same end."""
import json
import sys

import scenario

SETTINGS = scenario.small(train__max_steps=8, checkpoint__every=2, checkpoint__keep=0)


def flip(path, at):
    """at: an offset, or where a share of the file ends."""
    content = bytearray(path.read_bytes())
    content[int(at * len(content)) if at < 1 else at] ^= 0x10
    path.write_bytes(content)


def offset_in(place, checkpoint, dataset):
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    return next(tensor["offset"] for tensor in manifest["tensors"] if tensor["path"] == dataset)


def stopped_run(place):
    """A run of 8 steps with checkpoints 2, 4 and 6, and one like it that went on."""
    place.train({**SETTINGS, "run.name": "whole"}, ranks=2)
    place.train({**SETTINGS, "train.max_steps": 6, "schedule.total_steps": 8}, ranks=2)
    scenario.require_equal(place.checkpoints(), [f"step-{step:08}" for step in (2, 4, 6)], "checkpoints")
    return place.path / "runs/run/checkpoints"


def continue_from(place, step, *phrases, ranks=2):
    job = place.train({**SETTINGS, "schedule.total_steps": 8}, "--resume", "auto", ranks=ranks)
    scenario.require(f"step-{step:08}" in job.err, f"does not continue from step {step}: {job.describe()}")
    for phrase in phrases:
        scenario.require_equal(job.err.count(phrase), 1, f"times that '{phrase}' is said: {job.describe()}")
    scenario.require_equal([line["step"] for line in place.metrics()], list(range(1, 9)), "steps in metrics.jsonl")
    place.require_equal_runs("runs/run", "runs/whole")


def verify(place, checkpoint, *phrases):
    job = place.run("ckpt", "verify", checkpoint, code=65)
    for phrase in phrases:
        scenario.require(phrase in job.err, f"ckpt verify does not say '{phrase}': {job.describe()}")
    scenario.require_equal(len(job.errors()), 1, f"error reports: {job.describe()}")


def test_a_flipped_byte_in_weights_is_named_and_the_checkpoint_before_is_used(place):
    folder = stopped_run(place)
    newest = folder / "step-00000006"
    dataset = "/model/transformer.h.1.mlp.c_fc.weight"
    flip(newest / "state.h5", offset_in(place, newest, dataset) + 1000)
    place.run("ckpt", "verify", folder / "step-00000004")
    verify(place, newest, dataset, "block 0", "CRC32C")
    continue_from(place, 4, f"dataset {dataset} is damaged in block 0", "is not usable (found by rank")


def test_a_flipped_byte_in_the_last_moment_is_found_by_the_rank_that_reads_it(place):
    folder = stopped_run(place)
    newest = folder / "step-00000006"
    dataset = "/optimizer/exp_avg_sq/transformer.ln_f.bias"
    flip(newest / "state.h5", offset_in(place, newest, dataset) + 3)
    verify(place, newest, dataset)
    continue_from(place, 4, f"dataset {dataset} is damaged", ranks=4)


def test_a_damaged_manifest_and_a_shortened_file_are_passed_over(place):
    folder = stopped_run(place)
    flip(folder / "step-00000006/manifest.json", 0.5)
    state = folder / "step-00000004/state.h5"
    state.write_bytes(state.read_bytes()[:-5000])
    verify(place, folder / "step-00000006", "manifest.json")
    verify(place, folder / "step-00000004", "state.h5", "bytes instead of")
    continue_from(place, 2, "step-00000006 is not usable", "step-00000004 is not usable")


def test_a_checkpoint_without_manifest_is_passed_over(place):
    folder = stopped_run(place)
    (folder / "step-00000006/manifest.json").unlink()
    verify(place, folder / "step-00000006", "manifest.json")
    continue_from(place, 4, "step-00000006 is not usable")


def test_damaged_metadata_of_hdf5_is_found(place):
    folder = stopped_run(place)
    flip(folder / "step-00000006/state.h5", 600)
    verify(place, folder / "step-00000006", "metadata")
    continue_from(place, 4, "metadata is damaged in block 0")


def test_nothing_usable_ends_with_65_and_changes_nothing(place):
    folder = stopped_run(place)
    for checkpoint in folder.iterdir():
        flip(checkpoint / "state.h5", 0.9)
    before = {name: status for name, status in place.listing().items() if "checkpoints" in name or "metrics" in name}
    for ranks in (None, 2):
        job = place.train({**SETTINGS, "schedule.total_steps": 8}, "--resume", "auto", ranks=ranks, code=65)
        scenario.require_equal(len(job.errors()), 1, f"error reports: {job.describe()}")
        scenario.require("none of the 3 checkpoints" in job.err, f"does not say that all are damaged: {job.describe()}")
    after = {name: status for name, status in place.listing().items() if "checkpoints" in name or "metrics" in name}
    scenario.require_equal(after, before, "checkpoints and metrics")


def test_a_damaged_checkpoint_that_was_asked_for_by_path_is_not_replaced_by_another(place):
    folder = stopped_run(place)
    flip(folder / "step-00000006/state.h5", 0.9)
    for ranks in (None, 2):
        job = place.train({**SETTINGS, "schedule.total_steps": 8}, "--resume", folder / "step-00000006", ranks=ranks, code=65)
        scenario.require_equal(len(job.errors()), 1, f"error reports: {job.describe()}")
    scenario.require_equal(len(place.metrics()), 6, "steps")


def test_a_checkpoint_of_another_model_is_refused_and_kept(place):
    folder = stopped_run(place)
    before = {name: status for name, status in place.listing().items() if "checkpoints" in name or "metrics" in name}
    cases = [({"model.hidden": 32}, "auto"), ({"model.layers": 1}, "auto"), ({"model.layers": 3}, folder / "step-00000006"),
             ({"model.type": "llama"}, folder / "step-00000004")]
    for change, resume in cases:
        job = place.train({**SETTINGS, "schedule.total_steps": 8, **change}, "--resume", resume, ranks=2, code=64)
        scenario.require_equal(len(job.errors()), 1, f"error reports: {job.describe()}")
        scenario.require("checkpoint of another model" in job.err, f"does not say why: {job.describe()}")
    after = {name: status for name, status in place.listing().items() if "checkpoints" in name or "metrics" in name}
    scenario.require_equal(after, before, "checkpoints and metrics")
    place.train({**SETTINGS, "schedule.total_steps": 8}, "--resume", "auto")
    place.require_equal_runs("runs/run", "runs/whole")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
