"""Input that cannot work is refused before any step runs: the right exit code, one clear message, the same with any
number of ranks, and nothing lost or left behind."""
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import scenario

GOOD = scenario.small(train__max_steps=4)


def without(key):
    return {name: value for name, value in GOOD.items() if name != key}


# What, settings or text of the configuration, further arguments, exit code, what the message must contain. A case runs
# alone and on 2 ranks.
CONFIGURATIONS = [
    ("no data file", {**GOOD, "data.train": [{"path": "nowhere.txt"}]}, [], 64, ["nowhere.txt", "No such file"]),
    ("an empty text", {**GOOD, "data.train": "empty.txt"}, [], 64, ["empty.txt", "empty"]),
    ("a text shorter than a sequence", {**GOOD, "data.train": "short.txt"}, [], 64, ["short.txt", "40 tokens", "too few", "65"]),
    ("a text of one sequence, which evaluation takes", {**GOOD, "data.train": "one.txt"}, [], 64,
     ["one.txt", "nothing to train on"]),
    ("a folder instead of a text", {**GOOD, "data.train": "folder"}, [], 64, ["folder", "a directory"]),
    ("two bad files at once", {**GOOD, "data.train": ["nowhere.txt", "empty.txt"]}, [], 64, ["nowhere.txt", "empty.txt"]),
    ("nothing to train on", without("data.train"), [], 64, ["data.train"]),
    ("an unknown key", {**GOOD, "optimizer.learning_rate": 1}, [], 64, ["job.yaml:5", "optimizer.learning_rate", "unknown key"]),
    ("a misspelt key", {**GOOD, "train.max_step": 5}, [], 64, ["job.yaml:4", "did you mean 'max_steps'?"]),
    ("a misspelt section", {**GOOD, "trian.max_steps": 5}, [], 64, ["trian", "did you mean 'train'?"]),
    ("a misspelt value", {**GOOD, "parallel.strategy": "zero33"}, [], 64, ["parallel.strategy", "did you mean 'zero3'?"]),
    ("an unknown strategy", {**GOOD, "parallel.strategy": "zero4"}, [], 64, ["zero4", "zero1"]),
    ("a text for a number", {**GOOD, "model.hidden": "wide"}, [], 64, ["job.yaml:2", "model.hidden", "whole number", "wide"]),
    ("a fraction for a count", {**GOOD, "model.layers": 2.5}, [], 64, ["model.layers", "whole number", "2.5"]),
    ("a list for a number", {**GOOD, "train.max_steps": [1]}, [], 64, ["train.max_steps", "a list"]),
    ("a number for a switch", {**GOOD, "data.shuffle": 1}, [], 64, ["data.shuffle", "true or false"]),
    ("no steps", {**GOOD, "train.max_steps": 0}, [], 64, ["train.max_steps", "0 is out of range"]),
    ("negative layers", {**GOOD, "model.layers": -2}, [], 64, ["model.layers", "-2 is out of range"]),
    ("no width", {**GOOD, "model.hidden": 0}, [], 64, ["model.hidden", "0 is out of range"]),
    ("a negative batch", {**GOOD, "train.global_batch_size": -8}, [], 64, ["train.global_batch_size", "out of range"]),
    ("an empty micro-batch", {**GOOD, "train.micro_batch_size": 0}, [], 64, ["train.micro_batch_size", "out of range"]),
    ("a learning rate that is no number", {**GOOD, "optimizer.lr": float("nan")}, [], 64, ["optimizer.lr", "must be a number"]),
    ("heads that do not divide the width", {**GOOD, "model.heads": 5}, [], 64, ["model.heads", "5 does not divide", "64"]),
    ("kv heads that do not divide the heads", {**GOOD, "model.type": "llama", "model.kv_heads": 3}, [], 64,
     ["model.kv_heads", "3 does not divide"]),
    ("a batch that is no multiple of the micro-batch", {**GOOD, "train.global_batch_size": 9}, [], 64,
     ["train.global_batch_size", "not a multiple", "8 or 10"]),
    ("a sequence longer than the context", {**GOOD, "data.sequence_length": 65}, [], 64, ["data.sequence_length", "65", "64"]),
    ("a vocabulary without all bytes", {**GOOD, "model.vocab": 100}, [], 64, ["model.vocab", "too small"]),
    ("a warm-up beyond the end", {**GOOD, "schedule.warmup_steps": 5}, [], 64, ["schedule.warmup_steps", "longer"]),
    ("a signal that cannot be caught", {**GOOD, "stop.signals": ["KILL"]}, [], 64, ["stop.signals", "KILL"]),
    ("a name that is a path", {**GOOD, "run.name": "../run"}, [], 64, ["run.name", "../run"]),
    ("many problems at once", {**GOOD, "model.heads": 5, "train.max_steps": 0, "optimizer.lrr": 1}, [], 64,
     ["3 problems", "model.heads", "train.max_steps", "optimizer.lrr"]),
    ("text that is no YAML", "run: {name: [\n", [], 64, ["job.yaml:"]),
    ("a key that is given twice", "run: {name: a, name: b}\ndata: {train: text.txt}\n", [], 64, ["job.yaml:1", "twice"]),
    ("a list for a section", "run: [a]\n", [], 64, ["job.yaml:1", "run", "group of settings"]),
    ("--set without a value", GOOD, ["--set", "model.hidden"], 64, ["--set model.hidden", "must look like"]),
    ("--set of nonsense", GOOD, ["--set", "=3"], 64, ["--set", "must look like"]),
    ("--set of an unknown key", GOOD, ["--set", "model.hiden=3"], 64, ["--set model.hiden", "did you mean 'hidden'?"]),
    ("--set of a wrong type", GOOD, ["--set", "model.hidden=wide"], 64, ["--set model.hidden", "whole number"]),
    ("--set of a section", GOOD, ["--set", "model=3"], 64, ["--set model"]),
    ("a run folder below a file", {**GOOD, "run.dir": "text.txt/runs"}, [], 74, ["text.txt/runs/run", "Not a directory"]),
    ("a checkpoint that is not there", GOOD, ["--resume", "runs/other"], 64, ["runs/other", "does not exist"]),
    ("a word that --resume does not know", GOOD, ["--resume", "always"], 64, ["always", "does not exist"]),
    ("a text instead of a checkpoint", GOOD, ["--resume", "text.txt"], 64, ["text.txt", "checkpoint"]),
    ("a GPU where none can be used", {**GOOD, "run.device": "cuda"}, [], 69,
     ["be used", "run.device: cpu"]),
    ("a device that there is not", {**GOOD, "run.device": "tpu"}, [], 64, ["run.device", "cpu"]),
    ("an unknown flag", GOOD, ["--resme", "auto"], 2, ["--resme"]),
    ("a flag without its value", GOOD, ["--set"], 2, ["--set"]),
]


def prepare(place):
    (place.path / "empty.txt").write_text("")
    (place.path / "short.txt").write_text("x" * 40)
    (place.path / "one.txt").write_text("x" * 70)
    (place.path / "folder").mkdir()


def problem_with(job, code, phrases, ranks):
    """What is wrong with a refusal, or nothing."""
    if job.code != code:
        return f"expected exit code {code}"
    missing = [phrase for phrase in phrases if phrase not in job.err]
    if missing:
        return f"the message lacks {missing}"
    if code != 2 and len(job.errors()) != 1:
        return f"{len(job.errors())} error reports on {ranks} ranks"
    if code != 2 and not job.errors()[0].startswith("trireme: error ("):
        return "the report has another form"
    if job.out.strip():
        return "standard output is not for errors"
    if re.search(r"^(ready|step) \d", job.err, re.M):
        return "work was begun"
    return None


def refuse(case, ranks):
    """One case in a place of its own; returns what is wrong, or nothing."""
    what, settings, arguments, code, phrases = case
    with scenario.place() as place:
        prepare(place)
        text = settings if isinstance(settings, str) else scenario.as_yaml(settings).replace("NaN", ".nan")
        (place.path / "job.yaml").write_text(text)
        before = place.listing()
        job = place.run("train", "job.yaml", *arguments, ranks=ranks, code=None)
        problem = problem_with(job, code, phrases, ranks)
        if problem is None and place.listing() != before:
            problem = f"files changed: {sorted(set(place.listing()) ^ set(before))}"
        return f"{what}: {problem}: {job.describe()}" if problem else None


def refuse_all(cases, ranks):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wrong = [found for found in pool.map(lambda case: refuse(case, ranks), cases) if found]
    scenario.require(not wrong, f"{len(wrong)} of {len(cases)} cases\n" + "\n".join(wrong))


def test_bad_configurations_are_refused_alone(place):
    refuse_all(CONFIGURATIONS, None)


def test_bad_configurations_are_refused_once_on_two_ranks(place):
    # Starting ranks takes long, and what a file says is the same on all of them: some of each kind.
    chosen = [case for number, case in enumerate(CONFIGURATIONS) if number < 3 or number % 5 == 2 or case[3] == 74]
    refuse_all(chosen, 2)


def test_more_ranks_than_micro_batches_are_refused(place):
    job = place.train({**GOOD, "train.global_batch_size": 4}, ranks=3, code=64)
    scenario.require(problem_with(job, 64, ["3 ranks", "only 2 micro-batches", "at most 2 ranks"], 3) is None, job.describe())
    scenario.require(not (place.path / "runs").exists(), "a run folder was made")


def test_a_configuration_that_is_not_there_or_is_a_folder(place):
    (place.path / "folder.yaml").mkdir()
    for ranks in (None, 2):
        for name, phrase in (("nowhere.yaml", "no such file"), ("folder.yaml", "is a folder")):
            job = place.run("train", name, ranks=ranks, code=64)
            scenario.require(problem_with(job, 64, [name, phrase], ranks) is None, job.describe())
    scenario.require(not (place.path / "runs").exists(), "a run folder was made")


def test_a_run_that_is_there_is_not_overwritten(place):
    place.train(GOOD, ranks=2)
    before = place.listing()
    for ranks in (None, 2):
        job = place.run("train", "job.yaml", ranks=ranks, code=64)
        problem = problem_with(job, 64, ["runs/run", "already holds a run", "--resume auto"], ranks)
        scenario.require(problem is None, f"{problem}: {job.describe()}")
        scenario.require_equal(place.listing(), before, "files")


def test_other_data_or_seed_than_the_checkpoint_s_are_refused(place):
    place.train(GOOD, ranks=2)
    (place.path / "other.txt").write_text(scenario.text_of(30_000, seed=2))
    before = {name: status for name, status in place.listing().items() if name.startswith("runs")}
    for change, phrase in (({"data.train": "other.txt"}, "training samples"), ({"run.seed": 7}, "run.seed")):
        job = place.train({**GOOD, "train.max_steps": 8, **change}, "--resume", "auto", ranks=2, code=64)
        problem = problem_with(job, 64, [phrase], 2)
        scenario.require(problem is None, f"{problem}: {job.describe()}")
    scenario.require_equal({name: status for name, status in place.listing().items() if name.startswith("runs")}, before, "files")


def test_wrong_commands_are_usage_errors(place):
    place.config()
    cases = [
        ([], ["subcommand"]),
        (["trian", "job.yaml"], ["did you mean 'train'?"]),
        (["ckpt", "inspct", "runs/run"], ["inspct"]),
        (["ckpt"], ["subcommand"]),
        (["ckpt", "diff", "runs/run"], ["other"]),
        (["train"], ["a configuration file"]),
        (["train", "job.yaml", "--dryrun"], ["--dryrun"]),
        (["config", "show", "job.yaml", "--set"], ["--set"]),
    ]
    wrong = []
    for arguments, phrases in cases:
        job = place.run(*arguments, code=None)
        problem = problem_with(job, 2, phrases, None)
        if problem:
            wrong.append(f"{problem}: {job.describe()}")
    scenario.require(not wrong, "\n".join(wrong))


def test_help_is_everywhere(place):
    for command in ([], ["train"], ["generate"], ["ckpt"], ["ckpt", "inspect"], ["ckpt", "verify"], ["ckpt", "hash"],
                    ["ckpt", "diff"], ["config"], ["config", "show"], ["config", "fields"], ["config", "schema"]):
        job = place.run(*command, "--help")
        scenario.require("Usage: " in job.out and not job.err, f"no help: {job.describe()}")
    scenario.require(place.run("--version").out.startswith("trireme "), "no version")


def test_a_dry_run_prints_the_plan_and_leaves_nothing_behind(place):
    place.config(GOOD)
    before = place.listing()
    for ranks in (None, 2):
        job = place.run("train", "job.yaml", "--dry-run", ranks=ranks)
        said = job.out + job.err
        for phrase in ("parameters in", "memory a rank", "micro-batches", "training and", "job.yaml:2"):
            scenario.require_equal(said.count(phrase) > 0, True, f"the plan has '{phrase}': {job.describe()}")
        scenario.require_equal(said.count("memory a rank"), 1, "times that the plan is printed")
        scenario.require_equal(place.listing(), before, "files after a dry run")
    place.run("train", "job.yaml", "--dry-run", "--set", "model.heads=5", code=64)
    place.run("train", "job.yaml", "--dry-run", "--set", "data.train=nowhere.txt", ranks=2, code=64)


def test_a_dry_run_beside_a_run_leaves_it_alone(place):
    place.train(GOOD)
    before = place.listing()
    for resume in ("none", "auto"):
        place.run("train", "job.yaml", "--dry-run", "--resume", resume, code=None)
        scenario.require_equal(place.listing(), before, f"files after a dry run with --resume {resume}")


def test_a_folder_that_may_not_be_written_is_refused(place):
    locked = place.path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    if os.access(locked, os.W_OK):
        raise scenario.Skip("this user may write anywhere (root); the folder below a file stands for it")
    for ranks in (None, 2):
        job = place.train({**GOOD, "run.dir": "locked"}, ranks=ranks, code=74)
        problem = problem_with(job, 74, ["locked/run", "Permission denied"], ranks)
        scenario.require(problem is None, f"{problem}: {job.describe()}")


@contextlib.contextmanager
def tiny_disk(path, size):
    """A file system of its own, which only root can make."""
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, text=True)
    if made.returncode != 0:
        raise scenario.Skip(f"cannot mount a small file system: {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_is_named_and_loses_nothing(place):
    if os.geteuid() != 0:
        raise scenario.Skip("only root can make a small file system")
    # A checkpoint is 1.6 MB: two fit, a third does not.
    settings = {**GOOD, "run.dir": "disk", "train.max_steps": 12, "checkpoint.every": 2, "checkpoint.keep": 0}
    with tiny_disk(place.path / "disk", "4m") as disk:
        job = place.train(settings, ranks=2, code=None)
        scenario.require_equal(job.code, 74, f"exit code of a full disk: {job.describe()}")
        reports = job.errors()
        scenario.require_equal(len(reports), 1, f"error reports: {job.describe()}")
        for phrase in ("disk/run/checkpoints/step-00000006", "No space left", "errno 28", "hint: free some space"):
            scenario.require(phrase in reports[0], f"the message lacks '{phrase}': {job.describe()}")
        scenario.require_equal(place.checkpoints("disk/run"), ["step-00000002", "step-00000004"], "checkpoints")
        left = sorted(path.name for path in (disk / "run/checkpoints").iterdir())
        scenario.require_equal(left, ["step-00000002", "step-00000004"], "remains of the save that failed")
        for name in left:
            place.run("ckpt", "verify", f"disk/run/checkpoints/{name}")
        # With space again, for which the oldest goes, the run continues from the newest.
        shutil.rmtree(disk / "run/checkpoints/step-00000002")
        job = place.train({**settings, "checkpoint.every": 0, "checkpoint.keep": 1}, "--resume", "auto", ranks=2)
        scenario.require("step-00000004" in job.err, f"does not continue from step 4: {job.describe()}")
        place.train({**settings, "run.dir": "runs", "checkpoint.every": 0}, ranks=1)
        place.require_equal_runs("disk/run", "runs/run")


def test_metrics_on_a_full_disk_end_the_run_with_74(place):
    full = pathlib.Path("/dev/full")
    if not full.exists():
        raise scenario.Skip("there is no /dev/full")
    (place.path / "runs/run").mkdir(parents=True)
    (place.path / "runs/run/config.yaml").symlink_to(full)
    job = place.train(GOOD, ranks=2, code=74)
    problem = problem_with(job, 74, ["config.yaml", "No space left"], 2)
    scenario.require(problem is None, f"{problem}: {job.describe()}")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
