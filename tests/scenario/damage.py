"""Damaged checkpoints: what is wrong is named, the one before is used, and the run comes to the same end."""
import json
import shutil
import sys

import scenario

SETTINGS = scenario.small(train__max_steps=8, schedule__total_steps=8, checkpoint__every=2, checkpoint__keep=0)
WEIGHT = "/model/transformer.h.1.mlp.c_fc.weight"
MOMENT = "/optimizer/exp_avg_sq/transformer.ln_f.bias"


def flip(path, at):
    """at: an offset, or which share of the file lies before the byte."""
    content = bytearray(path.read_bytes())
    content[int(at * len(content)) if at < 1 else at] ^= 0x10
    path.write_bytes(content)


def flip_in(checkpoint, dataset, byte):
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    offset = next(tensor["offset"] for tensor in manifest["tensors"] if tensor["path"] == dataset)
    flip(checkpoint / "state.h5", offset + byte)


def shorten(path):
    path.write_bytes(path.read_bytes()[:-5000])


def weight_is_damaged(newest, _):
    flip_in(newest, WEIGHT, 1000)


def moment_is_damaged(newest, _):
    flip_in(newest, MOMENT, 3)


def hdf5_metadata_is_damaged(newest, _):
    flip(newest / "state.h5", 600)


def manifest_is_missing(newest, _):
    (newest / "manifest.json").unlink()


def manifest_is_damaged_and_the_file_before_is_short(newest, before):
    flip(newest / "manifest.json", 0.5)
    shorten(before / "state.h5")


# What was done, what `ckpt verify` says of the newest, what the run says, where it goes on, on how many ranks.
DAMAGES = [
    (weight_is_damaged, [WEIGHT, "block 0", "CRC32C"],
     [f"dataset {WEIGHT} is damaged in block 0", "step-00000006 is not usable (found by "], 4, 2),
    (moment_is_damaged, [MOMENT], [f"dataset {MOMENT} is damaged"], 4, 4),
    (hdf5_metadata_is_damaged, ["metadata"], ["metadata is damaged in block 0"], 4, 1),
    (manifest_is_missing, ["manifest.json"], ["step-00000006 is not usable"], 4, None),
    (manifest_is_damaged_and_the_file_before_is_short, ["manifest.json"],
     ["step-00000006 is not usable", "step-00000004 is not usable", "bytes instead of"], 2, 2),
]


def stopped_run(place):
    """A run of 8 steps that was stopped after 6, with checkpoints 2, 4 and 6."""
    place.train({**SETTINGS, "train.max_steps": 6}, ranks=2)
    scenario.require_equal(place.checkpoints(), [f"step-{step:08}" for step in (2, 4, 6)], "checkpoints")
    return place.path / "runs/run/checkpoints"


def state_of(place):
    """Checkpoints and metrics, to see that they stay as they are."""
    return {name: status for name, status in place.listing().items() if "checkpoints" in name or "metrics" in name}


def verify(place, checkpoint, phrases):
    job = place.run("ckpt", "verify", checkpoint, code=65)
    for phrase in phrases:
        scenario.require(phrase in job.err, f"ckpt verify does not say '{phrase}': {job.describe()}")
    scenario.require_equal(len(job.errors()), 1, f"error reports: {job.describe()}")


def test_damage_is_named_and_the_checkpoint_before_is_used(place):
    stopped_run(place)
    place.train({**SETTINGS, "run.name": "whole"}, ranks=2)
    for damage, verified, said, step, ranks in DAMAGES:
        name = damage.__name__
        shutil.copytree(place.path / "runs/run", place.path / f"runs/{name}")
        folder = place.path / f"runs/{name}/checkpoints"
        place.run("ckpt", "verify", folder / "step-00000006")
        damage(folder / "step-00000006", folder / "step-00000004")
        verify(place, folder / "step-00000006", verified)
        job = place.train({**SETTINGS, "run.name": name}, "--resume", "auto", ranks=ranks)
        scenario.require(f"continuing from runs/{name}/checkpoints/step-{step:08}" in job.err,
                         f"does not continue from step {step}: {job.describe()}")
        for phrase in said:
            scenario.require_equal(job.err.count(phrase), 1, f"times that '{phrase}' is said: {job.describe()}")
        scenario.require_equal([line["step"] for line in place.metrics(f"runs/{name}")], list(range(1, 9)), "steps")
        place.require_equal_runs(f"runs/{name}", "runs/whole")


def test_nothing_usable_ends_with_65_and_changes_nothing(place):
    folder = stopped_run(place)
    for checkpoint in folder.iterdir():
        flip(checkpoint / "state.h5", 0.9)
    before = state_of(place)
    for ranks in (None, 2):
        for resume, phrase in (("auto", "none of the 3 checkpoints"), (folder / "step-00000006", "is damaged in block 0")):
            job = place.train(SETTINGS, "--resume", resume, ranks=ranks, code=65)
            scenario.require_equal(len(job.errors()), 1, f"error reports: {job.describe()}")
            scenario.require(phrase in job.errors()[0], f"does not say '{phrase}': {job.describe()}")
    scenario.require_equal(state_of(place), before, "checkpoints and metrics")


def test_a_checkpoint_of_another_model_is_refused_and_kept(place):
    folder = stopped_run(place)
    before = state_of(place)
    cases = [({"model.hidden": 32}, "auto"), ({"model.layers": 1}, "auto"), ({"model.layers": 3}, folder / "step-00000006"),
             ({"model.type": "llama"}, folder / "step-00000004")]
    for change, resume in cases:
        job = place.train({**SETTINGS, **change}, "--resume", resume, ranks=2, code=64)
        scenario.require_equal(len(job.errors()), 1, f"error reports: {job.describe()}")
        scenario.require("checkpoint of another model" in job.err, f"does not say why: {job.describe()}")
    scenario.require_equal(state_of(place), before, "checkpoints and metrics")
    place.train(SETTINGS, "--resume", "auto")
    scenario.require_equal([line["step"] for line in place.metrics()], list(range(1, 9)), "steps")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
