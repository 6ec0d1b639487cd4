"""What `trireme ckpt` and `trireme bench io` do with the checkpoints of a real run."""
import json
import sys

import scenario

SETTINGS = scenario.small(train__max_steps=12, optimizer__lr=1e-2, checkpoint__every=3, checkpoint__keep=0)
LLAMA = {**SETTINGS, "model.type": "llama", "model.kv_heads": 2, "model.tied_head": False}


def greedy(place, checkpoint):
    return place.run("generate", checkpoint, "--prompt", "The ", "--temperature", 0, "--tokens", 50).out


def as_json(place, *command, code=0):
    return json.loads(place.run("ckpt", *command, "--json", code=code).out)


def weights_go_out_and_come_back(place, settings):
    place.train(settings, ranks=2)
    done = as_json(place, "export", "runs/run", "--to", "out", "--shard-size", "100KiB")
    scenario.require(done["files"] > 1, f"one shard only: {done}")
    names = sorted(path.name for path in (place.path / "out").iterdir())
    for name in ("config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
                 "tokenizer_config.json"):
        scenario.require(name in names, f"no {name} in {names}")
    for ranks in (None, 3):
        to = f"again-{ranks}/step-00000007"
        job = place.run("ckpt", "import", "out", "--to", to, ranks=ranks)
        scenario.require(job.out.strip().endswith(to), f"import says {job.out!r}")
        place.run("ckpt", "verify", to)
        found = as_json(place, "diff", "runs/run", to, code=1)["differences"]
        weights = [one for one in found if one["path"].startswith("/model")]
        scenario.require(not weights, f"weights differ: {weights}")
        scenario.require_equal(greedy(place, to), greedy(place, "runs/run"), "text from the imported weights")
    place.run("ckpt", "export", "runs/run", "--to", "out", code=64)


def test_gpt2_passes_through_a_hugging_face_folder(place):
    weights_go_out_and_come_back(place, SETTINGS)


def test_llama_passes_through_a_hugging_face_folder(place):
    weights_go_out_and_come_back(place, LLAMA)


def test_halves_are_half_as_large(place):
    place.train({**SETTINGS, "train.max_steps": 2})
    full = as_json(place, "export", "runs/run", "--to", "full")
    for dtype in ("bf16", "f16"):
        half = as_json(place, "merge-weights", "runs/run", "--to", dtype, "--dtype", dtype)
        scenario.require_equal(2 * half["bytes"], full["bytes"], f"bytes of {dtype}")
        place.run("generate", place.run("ckpt", "import", dtype, "--to", f"from-{dtype}").out.strip(), "--tokens", 5)
    place.run("ckpt", "export", "runs/run", "--to", "x", "--dtype", "int4", code=2)
    (place.path / "empty").mkdir()
    job = place.run("ckpt", "import", "empty", "--to", "y", code=64)
    scenario.require("config.json" in job.err, f"what is missing is not named: {job.describe()}")


def test_prune_keeps_what_the_rules_name(place):
    place.train(SETTINGS)
    steps = lambda: sorted(path.name for path in (place.path / "runs/run/checkpoints").iterdir())
    before = steps()
    plan = as_json(place, "prune", "runs/run", "--keep-last", 1, "--keep-every", 6, "--dry-run")
    scenario.require_equal(steps(), before, "what a dry run leaves")
    kept = sorted(one["path"].rsplit("/", 1)[1] for one in plan["entries"] if one["keep"])
    place.run("ckpt", "prune", "runs/run", "--keep-last", 1, "--keep-every", 6)
    scenario.require_equal(steps(), kept, "what is left")
    scenario.require_equal(kept, ["step-00000006", "step-00000012"], "what the rules keep")


def test_a_damaged_checkpoint_is_salvaged(place):
    place.train(SETTINGS)
    newest = place.path / "runs/run/checkpoints/step-00000012"
    manifest = json.loads((newest / "manifest.json").read_text())
    hurt = next(one for one in manifest["tensors"] if one["path"].endswith("mlp.c_fc.weight"))
    content = bytearray((newest / "state.h5").read_bytes())
    content[hurt["offset"] + 100] ^= 1
    (newest / "state.h5").write_bytes(content)
    found = as_json(place, "verify", newest, code=65)
    scenario.require_equal([one["dataset"] for one in found["damages"]], [hurt["path"]], "what is damaged")
    scenario.require_equal(found["damages"][0]["offset"], hurt["offset"], "where")
    scenario.require(found["good_neighbour"].endswith("step-00000009"), f"the good one: {found}")
    saved = as_json(place, "salvage", newest, "--to", "saved")
    scenario.require_equal([one["dataset"] for one in saved["lost"]], [hurt["path"]], "what is lost")
    place.run("ckpt", "verify", saved["checkpoint"])
    several = as_json(place, "hash", "runs/run/checkpoints/step-00000003", "runs/run/checkpoints/step-00000006")
    scenario.require_equal(len({one["hash"] for one in several["hashes"]}), 2, "two checkpoints, two digests")


def test_drivers_and_files_of_nodes_hold_the_same(place):
    nodes = {"TRIREME_TEST_RANKS_PER_NODE": "1"}
    stopped = {**SETTINGS, "train.max_steps": 6, "checkpoint.every": 0, "parallel.strategy": "zero3"}
    place.train({**stopped, "run.name": "plain"}, ranks=2)
    for name, settings in (
        ("mpiio", {"checkpoint.driver": "mpiio"}),
        ("together", {"checkpoint.driver": "mpiio", "checkpoint.transfer": "collective"}),
        ("nodes", {"checkpoint.files": "node"}),
    ):
        place.train({**stopped, **settings, "run.name": name}, ranks=2, environment=nodes)
        place.run("ckpt", "verify", f"runs/{name}")
        place.run("ckpt", "diff", "runs/plain", f"runs/{name}")
    files = sorted(path.name for path in (place.path / "runs/nodes/checkpoints/step-00000006").iterdir())
    scenario.require_equal(files, ["manifest.json", "state-0000.h5", "state-0001.h5"], "files of two nodes")
    # One rank goes on from what two nodes wrote, and writes one file again.
    for name in ("nodes", "plain"):
        place.train({**SETTINGS, "run.name": name}, "--resume", "auto")
    place.run("ckpt", "diff", "runs/plain", "runs/nodes")


def test_bench_io_measures_and_leaves_nothing(place):
    (place.path / "disk").mkdir()
    job = place.run("bench", "io", "disk", "--size", "8MB", "--runs", 2, "--json", ranks=2)
    measured = json.loads(job.out)
    rows = {row["what"]: row for row in measured["rows"]}
    scenario.require_equal(sorted(rows), ["load", "raw read", "raw write", "save"], "rows")
    scenario.require(all(len(row["seconds"]) == 2 and row["gb_per_s"] > 0 for row in rows.values()), f"{rows}")
    scenario.require_equal(rows["save"]["bound"], "raw write", "bound of a save")
    for key in ("cpu", "commit", "file_system", "hdf5", "mpi", "ranks"):
        scenario.require(key in measured["context"], f"no {key} in the context")
    scenario.require_equal(list((place.path / "disk").iterdir()), [], "what is left")
    table = place.run("bench", "io", "disk", "--size", "4MB", "--runs", 1, "--mpiio").out
    scenario.require("of raw write" in table, table)
    scenario.require("mpiio" in table, table)


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
