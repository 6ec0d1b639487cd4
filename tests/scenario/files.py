"""What a run leaves behind is what other programs were promised: a folder, lines of JSON, and HDF5 that anyone reads."""
import json
import re
import shutil
import subprocess
import sys

import scenario

SETTINGS = scenario.small(train__max_steps=6, train__eval_every=3, checkpoint__every=2, checkpoint__keep=2,
                          log__tensorboard=True)
ALWAYS = {"step", "loss", "lr", "grad_norm", "tokens", "samples", "tokens_per_s", "mfu", "step_s", "data_s", "compute_s",
          "comm_s", "optim_s", "skipped", "rss_mib_max"}
SOMETIMES = {"ckpt_s", "loss_scale", "eval_loss"}
# Prints path, shape and type of every dataset, and reads all of them.
READ_ALL = """
import h5py, json, sys
found = {}
def visit(name, item):
    if isinstance(item, h5py.Dataset):
        item[()]
        found["/" + name] = [list(item.shape), str(item.dtype)]
with h5py.File(sys.argv[1], "r") as file:
    file.visititems(visit)
    texts = {name: str(file["/extra/" + name].asstr()[()]) for name in file["extra"]}
print(json.dumps({"datasets": found, "texts": texts}))
"""


def test_the_folder_of_a_run_holds_what_is_promised(place):
    job = place.train(SETTINGS, ranks=2)
    run = place.path / "runs/run"
    found = sorted(re.sub(r"^(events\.out\.tfevents)\..+", r"\1", path.name) for path in run.iterdir())
    # The dot file is what the running job holds the folder by.
    scenario.require_equal(found, [".lock", "checkpoints", "config.yaml", "events.out.tfevents", "log", "metrics.jsonl",
                                   "report.html"], "the folder")
    scenario.require_equal(sorted(path.name for path in (run / "log").iterdir()),
                           ["rank-00000.log", "rank-00001.log"], "logs")
    scenario.require_equal(sorted(path.name for path in (run / "checkpoints").iterdir()),
                           ["step-00000004", "step-00000006"], "the newest two checkpoints")
    for checkpoint in (run / "checkpoints").iterdir():
        scenario.require_equal(sorted(path.name for path in checkpoint.iterdir()), ["manifest.json", "state.h5"], "checkpoint")
        json.loads((checkpoint / "manifest.json").read_text())
    scenario.require(re.search(r"hidden: 64 +# job.yaml:\d+", (run / "config.yaml").read_text()), "no sources in config.yaml")
    page = (run / "report.html").read_text()
    scenario.require("</html>" in page and not re.search(r"(src|href)=.https?:", page), "the report is no page of its own")
    done = r"done step=6 loss=\d+\.\d{4} tokens=3072 seconds=\d+\.\d checkpoint=runs/run/checkpoints/step-00000006"
    scenario.require(re.fullmatch(done + "\n", job.out), f"standard output is other than one last line: {job.out!r}")
    scenario.require(f"loss={place.metrics()[-1]['loss']:.4f} " in job.out, "the last line has another loss than the metrics")


def test_the_resolved_configuration_repeats_the_run(place):
    place.train(SETTINGS, ranks=2)
    shutil.copy(place.path / "runs/run/config.yaml", place.path / "again.yaml")
    place.run("train", "again.yaml", "--set", "run.name=again")
    place.require_equal_runs("runs/again", "runs/run")
    shown = place.run("config", "show", "again.yaml").out
    scenario.require("hidden: 64" in shown and "again.yaml:" in shown, f"config show: {shown}")


def test_lines_of_metrics_have_the_named_fields(place):
    place.train(SETTINGS, ranks=2)
    lines = place.metrics()
    scenario.require_equal([line["step"] for line in lines], [1, 2, 3, 4, 5, 6], "steps")
    for line in lines:
        scenario.require(ALWAYS <= line.keys(), f"missing: {ALWAYS - line.keys()}")
        scenario.require(line.keys() <= ALWAYS | SOMETIMES, f"unknown: {line.keys() - ALWAYS - SOMETIMES}")
        scenario.require(all(isinstance(value, (int, float)) for value in line.values()), f"no numbers: {line}")
        scenario.require_equal(line["tokens"], line["step"] * 8 * 64, "tokens so far")
        scenario.require_equal(line["samples"], line["step"] * 8, "samples so far")
        scenario.require(0 < line["mfu"] < 1.5 and line["tokens_per_s"] > 0, f"speed: {line}")
        scenario.require(line["rss_mib_max"] > 10, f"memory: {line}")
        parts = sum(line[part] for part in ("data_s", "compute_s", "comm_s", "optim_s"))
        scenario.require(parts <= line["step_s"] * 1.01, f"the parts of a step take longer than the step: {line}")
    scenario.require_equal([line["step"] for line in lines if "eval_loss" in line], [3, 6], "steps with an evaluation")
    scenario.require("ckpt_s" in lines[2] and "ckpt_s" not in lines[1], "the time of a save is on the line after it")


def test_checkpoints_are_plain_hdf5_with_logical_shapes(place):
    settings = {**SETTINGS, "model.type": "llama", "model.kv_heads": 2, "model.tied_head": False}
    place.train(settings, ranks=3)
    state = place.path / "runs/run/checkpoints/step-00000006/state.h5"
    shown = json.loads(place.run("ckpt", "inspect", "runs/run", "--json").out)
    expected = {tensor["path"]: tensor["shape"] for tensor in shown["tensors"]}
    scenario.require_equal(shown["step"], 6, "step")
    weights = [path for path in expected if path.startswith("/model/")]
    scenario.require("/model/model.layers.1.self_attn.k_proj.weight" in weights, f"names of weights: {weights}")
    scenario.require_equal(expected["/model/model.layers.1.self_attn.k_proj.weight"], [32, 64], "shape of 2 key heads")
    for slot in ("exp_avg", "exp_avg_sq"):
        moments = {path: expected.get(path.replace("/model/", f"/optimizer/{slot}/")) for path in weights}
        scenario.require_equal(moments, {path: expected[path] for path in weights}, f"shapes of {slot}")

    has_h5py = subprocess.run([scenario.PYTHON, "-c", "import h5py"], capture_output=True).returncode == 0
    if not has_h5py and not shutil.which("h5ls"):
        raise scenario.Skip("neither h5py nor h5ls is here")
    if has_h5py:
        result = subprocess.run([scenario.PYTHON, "-c", READ_ALL, state], capture_output=True, text=True)
        scenario.require_equal(result.returncode, 0, f"h5py: {result.stderr}")
        read = json.loads(result.stdout)
        arrays = {path: shape for path, (shape, _) in read["datasets"].items() if not path.startswith("/extra/")}
        scenario.require_equal(arrays, expected, "shapes by h5py")
        types = {kind for path, (_, kind) in read["datasets"].items() if not path.startswith("/extra/")}
        scenario.require_equal(types, {"float32"}, "types by h5py")
        scenario.require_equal(read["texts"], shown["extra"], "texts by h5py")
        scenario.require_equal(json.loads(read["texts"]["training"])["step"], 6, "the step in the file")
    if shutil.which("h5ls"):
        result = subprocess.run(["h5ls", "-r", state], capture_output=True, text=True)
        scenario.require_equal(result.returncode, 0, f"h5ls: {result.stderr}")
        lines = re.findall(r"^(/\S+)\s+Dataset \{([\d, ]*)\}$", result.stdout, re.M)
        shapes = {path: [int(dim) for dim in dims.split(",")] for path, dims in lines if not path.startswith("/extra/")}
        scenario.require_equal(shapes, expected, "shapes by h5ls")


def test_the_tools_for_checkpoints_answer_in_json_and_by_exit_code(place):
    place.train(SETTINGS)
    first, second = (f"runs/run/checkpoints/step-0000000{step}" for step in (4, 6))
    equal = json.loads(place.run("ckpt", "diff", second, "runs/run", "--json").out)
    scenario.require_equal(equal, {"equal": True, "differences": []}, "diff of a checkpoint with itself")
    other = json.loads(place.run("ckpt", "diff", first, second, "--json", code=1).out)
    scenario.require(not other["equal"] and "/model/transformer.wte.weight" in
                     [difference["path"] for difference in other["differences"]], f"diff of two steps: {other}")
    scenario.require(place.hash_of(first) != place.hash_of(second), "two steps have the same hash")
    hashed = json.loads(place.run("ckpt", "hash", second, "--json").out)
    scenario.require_equal(hashed["hash"], place.hash_of("runs/run"), "hash as JSON")
    scenario.require_equal(json.loads(place.run("ckpt", "verify", second, "--json").out)["good"], True, "verify")
    for tool in ("inspect", "verify", "hash"):
        place.run("ckpt", tool, "runs/nowhere", code=64)


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
