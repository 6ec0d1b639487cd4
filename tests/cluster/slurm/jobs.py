"""Jobs on a real Slurm of two nodes (cluster.py): submitted, stopped before their limit, cancelled, preempted, chained, as
arrays, through qsub, and on a node that dies. Whatever happens, training ends as if nothing had."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "scenario")]
import cluster  # noqa: E402
import scenario  # noqa: E402
from scenario import Failure, require, require_equal  # noqa: E402

ROOT = HERE.parents[2]
BIN = pathlib.Path(scenario.BIN).resolve()
PATIENCE_S = 150
STEPS = 600
LONG = 1500  # for the job that must still train when it meets its limit
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "DEADLINE", "OUT_OF_MEMORY")

slurm = None
# Takes the place of the program: its first start of a job waits before training, so that a signal that is due in half a
# minute finds it early in the run, and the machine is free for other tests until then.
LATE = """#!/bin/bash
mkdir "late-$SLURM_JOB_ID-$SLURM_PROCID" 2>/dev/null && sleep 22
exec {binary} "$@"
"""


def settings(steps, **changes):
    """Many short steps; every rank is told of a stop in time by signals alone."""
    return scenario.small(**{"train__max_steps": steps, "schedule__total_steps": steps, "checkpoint__every": 0,
                             "log__every": 500, "stop__before_deadline": 1, **changes})


class Work:
    """A folder that all nodes see, with a text and a configuration."""

    undisturbed = {}  # runs of one process that nothing happens to, by their number of steps

    def __init__(self, name, steps=STEPS, **changes):
        self.num_steps = steps
        self.path = slurm.folder / "work" / name
        self.path.mkdir()
        (self.path / "text.txt").write_text(scenario.text_of(60_000))
        (self.path / "job.yaml").write_text(scenario.as_yaml(settings(steps, **changes)))

    def command(self, *words, code=0, **environment):
        # Four ranks spin on two cores.
        shared = {"OMPI_MCA_mpi_yield_when_idle": "1", **environment}
        return slurm.run(words, code=code, folder=self.path, environment=shared)

    def submit(self, *options, time="10m", name="job", train=("job.yaml",), **environment):
        """Returns the ids of the jobs, on both nodes with two ranks each."""
        done = self.command(BIN, "submit", "--nodes=2", "--ranks-per-node=2", f"--time={time}", f"--name={name}",
                            "--option=--exclusive=user", *options, "train", *train, **environment)
        return done.stdout.split()

    def output(self, job, name="job"):
        path = self.path / f"{name}-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def steps(self, run="run"):
        path = self.path / "runs" / run / "metrics.jsonl"
        return [int(step) for step in re.findall(r'"step": ?(\d+)', path.read_text())] if path.exists() else []

    def training(self, run="run"):
        return len(self.steps(run)) >= 5

    def require_as_undisturbed(self):
        """Equal to the bit to a run of one process that nothing happened to, and no step missing or twice."""
        whole = self.undisturbed.get(self.num_steps)
        if not whole:
            whole = self.undisturbed[self.num_steps] = self.path / "runs/undisturbed"
            subprocess.run([BIN, "train", "job.yaml", "--set", "run.name=undisturbed"], cwd=self.path, check=True,
                           capture_output=True, timeout=PATIENCE_S)
        done = subprocess.run([BIN, "ckpt", "diff", self.path / "runs/run", whole], text=True, capture_output=True,
                              check=False)
        require_equal(done.returncode, 0, f"ckpt diff with an undisturbed run: {done.stdout}{done.stderr}")
        require_equal(self.steps(), list(range(1, self.num_steps + 1)), "steps in metrics.jsonl")


def until(condition, what, work=None, job=None, patience=PATIENCE_S):
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            text = work.output(job)[-3000:] if work and job else ""
            raise Failure(f"waited {patience} s for {what}; {slurm.job(job) if job else ''}\n{scenario.indented(text)}")
        time.sleep(0.1)


def ended(job):
    return slurm.job(job).get("JobState") in ENDED


def require_end(work, job, state, code, name="job"):
    until(lambda: ended(job), f"the end of job {job}", work, job)
    found = slurm.job(job)
    text = work.output(job, name)
    require_equal((found["JobState"], found["ExitCode"]), (state, code), f"end of job {job}: {scenario.indented(text)}")
    return text


def start_the_job_that_meets_its_limit():
    """First of all: it needs a minute, most of which others can use."""
    work = Work("limit", LONG)
    late = work.path / "late"
    late.write_text(LATE.format(binary=BIN))
    late.chmod(0o755)
    return work, work.submit(time="1m", TRIREME_BIN=str(late))[0]


def test_every_script_passes_sbatchs_own_check(_):
    for script in sorted((ROOT / "slurm").glob("*.sbatch")):
        done = slurm.run(["sbatch", "--test-only", script, "job.yaml"], code=None)
        require_equal(done.returncode, 0, f"{script.name}: {done.stderr}")
    work = Work("check")
    (work.path / "sweep.txt").write_text("--set train.max_steps=3\n")
    kinds = {"one": ["--nodes=1"], "two": ["--nodes=2"], "gpus": ["--nodes=2", "--gpus-per-node=4"],
             "chain": ["--chain=3"], "sweep": ["--sweep=sweep.txt"], "timed": ["--time=1-00:00:00"]}
    for kind, options in kinds.items():
        text = work.command(BIN, "submit", "--scheduler=slurm", *options, "--print", "train", "job.yaml").stdout
        script = work.path / f"{kind}.sbatch"
        script.write_text(text)
        done = slurm.run(["sbatch", "--test-only", script], code=None)
        require_equal(done.returncode, 0, f"{kind}: {done.stderr}")


def test_cancelled_jobs_save_and_stay_cancelled(_):
    work = Work("cancel")
    job = work.submit()[0]
    until(lambda: work.training(), "training", work, job)
    slurm.run(["scancel", job])
    require_end(work, job, "CANCELLED", "85:0")
    until(lambda: "it was cancelled" in work.output(job), "the reason", work, job, 30)
    text = work.output(job)
    require("stopped at step" in text, f"no checkpoint: {scenario.indented(text)}")
    require("requeued" not in text.replace("not requeued", ""), f"came back: {scenario.indented(text)}")


def test_a_preempted_job_saves_makes_room_and_goes_on(_):
    work = Work("preempt")
    job = work.submit("--partition=low", "--cpus-per-rank=16")[0]
    until(lambda: work.training(), "training", work, job)
    other = slurm.run(["sbatch", "--parsable", "-N2", "--ntasks-per-node=1", "--cpus-per-task=33", "-o/dev/null",
                       "--wrap=sleep 3"]).stdout.strip()
    until(lambda: ended(other), "the end of the job that took the nodes", work, job)
    text = require_end(work, job, "COMPLETED", "0:0")
    require("stopped at step" in text and "continuing from" in text, f"no save: {scenario.indented(text)}")
    require_equal(slurm.job(job)["Restarts"], "1", "restarts")
    work.require_as_undisturbed()


def test_a_chain_goes_on_from_link_to_link_and_ends_early(_):
    work = Work("chain")
    jobs = work.submit("--chain=3")
    require_equal(len(jobs), 3, "jobs of the chain")
    until(lambda: work.training(), "training", work, jobs[0])
    slurm.run(["scancel", "--batch", "--signal=USR1", jobs[0]])
    first = require_end(work, jobs[0], "FAILED", "85:0")
    require("got USR1" in first and "code 85: again" in first, f"first link: {scenario.indented(first)}")
    second = require_end(work, jobs[1], "COMPLETED", "0:0")
    require("continuing from" in second, f"second link: {scenario.indented(second)}")
    third = require_end(work, jobs[2], "COMPLETED", "0:0")
    require(f"the chain ended with code 0 in job {jobs[1]}" in third, f"third link: {scenario.indented(third)}")
    work.require_as_undisturbed()


def test_a_chain_stops_where_trying_again_is_no_use(_):
    work = Work("stop")
    jobs = work.submit("--chain=2", train=("job.yaml", "--set", "model.heads=7"))
    first = require_end(work, jobs[0], "FAILED", "64:0")
    require("model.heads" in first and "code 64: stop" in first, f"first link: {scenario.indented(first)}")
    second = require_end(work, jobs[1], "FAILED", "64:0")
    require("the chain ended with code 64" in second, f"second link: {scenario.indented(second)}")


def test_an_array_trains_with_each_line_of_the_sweep(_):
    work = Work("sweep", 20)
    (work.path / "sweep.txt").write_text("# rates\n--set optimizer.lr=1e-3 --set run.name=slow\n\n--set optimizer.lr=1e-2\n")
    job = work.submit("--sweep=sweep.txt")[0]
    for task in (1, 2):
        until(lambda number=task: ended(f"{job}_{number}"), f"task {task}", work, f"{job}_{task}")
        require_equal(slurm.job(f"{job}_{task}")["JobState"], "COMPLETED",
                      f"task {task}: {work.output(f'{job}-{task}')}")
    require_equal((len(work.steps("slow")), len(work.steps("sweep-2"))), (20, 20), "steps of the two runs")


def test_qsub_takes_the_script_for_pbs(_):
    work = Work("qsub", 20)
    text = work.command(BIN, "submit", "--scheduler=pbs", "--nodes=2", "--ranks-per-node=2", "--time=5m", "--name=pbs",
                        "--print", "train", "job.yaml").stdout
    (work.path / "job.pbs").write_text(text)
    job = work.command("qsub", "job.pbs").stdout.split()[0]
    until(lambda: ended(job), f"the end of job {job}")
    said = "".join(path.read_text() for path in work.path.glob("*.[oe]*") if path.suffix[1] in "oe" and path.is_file())
    require_equal(slurm.job(job)["JobState"], "COMPLETED", f"job {job}: {scenario.indented(said)}")
    require("4 ranks on 2 nodes" in said or "4 on 2 nodes" in said, f"ranks: {scenario.indented(said)}")
    require_equal(len(work.steps()), 20, "steps")


def test_plain_srun_and_mpirun_in_a_script_of_ones_own_train(_):
    work = Work("plain", 10)
    for launcher in ("srun --mpi=pmix", "mpirun --allow-run-as-root"):
        name = launcher.split()[0]
        script = work.path / f"{name}.sbatch"
        script.write_text(f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2 -o {name}-%j.out\n"
                          f"{launcher} {BIN} train job.yaml --set run.name={name}\n")
        job = work.command("sbatch", "--parsable", script).stdout.strip()
        text = require_end(work, job, "COMPLETED", "0:0", name)
        require("4 on 2 nodes" in text, f"{name}: {scenario.indented(text)}")


def test_mpirun_in_the_script_is_told_too(_):
    work = Work("mpirun")
    job = work.submit(TRIREME_LAUNCHER="mpirun --allow-run-as-root")[0]
    until(lambda: work.training(), "training", work, job)
    slurm.run(["scancel", "--batch", "--signal=USR1", job])
    text = require_end(work, job, "COMPLETED", "0:0")
    require("got USR1" in text and "code 85" in text and "continuing from" in text, scenario.indented(text))
    work.require_as_undisturbed()


def test_binary_and_data_are_copied_to_the_nodes(_):
    work = Work("stage", 10)
    job = work.submit("--stage=binary", "--stage=text.txt",
                      train=("job.yaml", "--set", "data.train={local}/text.txt"))[0]
    text = require_end(work, job, "COMPLETED", "0:0")
    require("staged binary text.txt into /tmp/trireme-" in text, f"staging: {scenario.indented(text)}")
    require(f"/tmp/trireme-{job}/trireme train" in text, f"not the copy: {scenario.indented(text)}")
    for node in slurm.names:
        require_equal(slurm.on(node, ["sh", "-c", "ls -d /tmp/trireme-[0-9]* 2>/dev/null"]).stdout, "", f"left on {node}")


def test_a_rank_frozen_by_the_batch_script_is_refused_with_both_names(_):
    work = Work("frozen", 10)
    script = work.path / "frozen.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2 -o frozen-%j.out\nexport RANK=$SLURM_PROCID\n"
                      f"srun --mpi=pmix {BIN} train job.yaml\n")
    job = work.command("sbatch", "--parsable", script).stdout.strip()
    until(lambda: ended(job), "the end", work, job)
    text = work.output(job, "frozen")
    require("RANK=0 and SLURM_PROCID=" in text, f"no refusal: {scenario.indented(text)}")
    require_equal(work.steps(), [], "steps")


def test_processes_that_would_train_alone_are_refused(_):
    work = Work("alone", 10)
    done = work.command("srun", "-N2", "-n3", "--mpi=none", BIN, "train", "job.yaml", code=None)
    require_equal(done.returncode, 69, f"code: {done.stderr}")
    require("of 3, but srun gave it no PMI" in done.stderr, f"no refusal: {done.stderr}")


def test_doctor_prints_one_report_of_all_nodes(_):
    work = Work("doctor", 10)
    ranks = ["srun", "-Q", "-N2", "-n4", "--ntasks-per-node=2", "--mpi=pmix", BIN, "doctor", "--json"]
    done = work.command(*ranks)
    report = json.loads(done.stdout)
    checks = {finding["check"] for finding in report["findings"]}
    require_equal((report["nodes"], report["faults"]), (2, 0), f"nodes and faults: {done.stdout}")
    require({"MPI", "clocks", "network", "node windows", "parallel HDF5", "shared folder"} <= checks, f"checks: {checks}")
    require_equal(sorted(next(f for f in report["findings"] if f["check"] == "limits")["hosts"]), ["n1", "n2"], "hosts")
    # A folder that every node has for itself.
    done = work.command(*ranks, "--folder=/tmp", code=None)
    require_equal(done.returncode, 69, f"code: {done.stdout}{done.stderr}")
    fault = next(f for f in json.loads(done.stdout)["findings"] if f["severity"] == "fault")
    require_equal((fault["check"], fault["hosts"]), ("shared folder", ["n2"]), "fault")


def test_env_says_where_a_rank_is(_):
    work = Work("env", 10)
    # A file a rank: srun mixes long lines of several ranks.
    work.command("srun", "-Q", "-N2", "-n4", "--ntasks-per-node=2", "--mpi=pmix", "-o", "env-%t.json", BIN, "env",
                 "--json", "--all-ranks")
    answers = [json.loads((work.path / f"env-{rank}.json").read_text()) for rank in range(4)]
    require_equal(sorted(answer["place"]["rank"] for answer in answers), [f"{r} of 4" for r in range(4)], "ranks")
    require_equal({answer["job"]["hosts"] for answer in answers}, {"n1:2,n2:2"}, "hosts of the job")
    done = work.command("srun", "-Q", "-N2", "-n4", "--mpi=pmix", BIN, "env", "--json")
    require_equal(json.loads(done.stdout)["place"]["launcher"], "Slurm", "one answer for all")


def test_a_job_saves_before_its_limit_is_requeued_and_ends_as_if_undisturbed(_):
    work, job = early
    text = require_end(work, job, "COMPLETED", "0:0")
    require("got USR1" in text and "requeued as job" in text and "continuing from" in text,
            f"no stop before the limit: {scenario.indented(text)}")
    # More than once where the machine is slow.
    require(int(slurm.job(job)["Restarts"]) >= 1, "was not requeued")
    work.require_as_undisturbed()


def test_a_job_outlives_a_node_that_dies(_):
    """Last: it takes a node away."""
    work = Work("node", checkpoint__every=50)
    job = work.submit()[0]
    until(lambda: len(work.steps()) >= 100, "two checkpoints", work, job)
    slurm.kill("n2")
    until(lambda: slurm.job(job).get("Restarts") == "1", "the requeue", work, job)
    slurm.start("n2")
    text = require_end(work, job, "COMPLETED", "0:0")
    require("continuing from" in text, f"no resume: {scenario.indented(text)}")
    work.require_as_undisturbed()


early = None


def main():
    global slurm, early
    reason = cluster.missing()
    if reason:
        print(f"skipped: {reason}")
        return 77
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    libraries = subprocess.run(["ldd", BIN], capture_output=True, text=True, check=True).stdout
    folders = {ROOT, BIN.parent, *(pathlib.Path(path).parent for path in re.findall(r"=> (/\S+)", libraries))}
    with tempfile.TemporaryDirectory(prefix="trireme-slurm-") as folder:
        os.chmod(folder, 0o755)  # munged wants it
        with cluster.Cluster(pathlib.Path(folder) / "c", visible=folders) as slurm:
            if not sys.argv[1:] or any(word in "test_a_job_saves_before_its_limit" for word in sys.argv[1:]):
                early = start_the_job_that_meets_its_limit()
            return scenario.main(globals())


if __name__ == "__main__":
    sys.exit(main())
