"""The scripts in slurm/ and pbs/ and what they decide, with stand-ins for the scheduler's commands and the program; and
what `trireme submit` writes. Without a scheduler: slurm/jobs.py is the same on a real one."""
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scenario"))
import scenario  # noqa: E402
from scenario import Skip, require, require_equal  # noqa: E402

ROOT = HERE.parents[1]
BIN = pathlib.Path(scenario.BIN).resolve()
STAND_IN = """#!/bin/bash
echo "{name} $*" >>"$LOG"
{body}
"""
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]",
         "SLURM_JOB_NAME": "job"}


class Desk:
    """A folder with commands of its own in front of the machine's, which write down how they were called."""

    def __init__(self, place):
        self.path = place.path
        self.log = self.path / "log"
        self.bin = self.path / "bin"
        self.bin.mkdir()
        self.log.touch()
        # Starts one "rank": the words from the program on.
        run = 'while [[ $# -gt 0 && $1 != */program && $1 != bash ]]; do shift; done; "$@"'
        self.command("srun", f'if [[ $* == *--mpi=list* ]]; then echo "pmix pmi2"; exit; fi\n{run}')
        self.command("mpiexec", f'if [[ $1 == --version ]]; then echo "$MPIEXEC_SAYS"; exit; fi\n{run}')
        # A requeue ends the script that asks for it.
        self.command("scontrol", 'if [[ $* == *show* ]]; then echo "JobId=7 JobState=${STATE:-RUNNING} x"\n'
                     'else kill -TERM $PPID; fi')
        self.command("squeue", 'echo "${LEFT:-1:00:00}"')
        self.command("sbcast", "")
        self.command("qsub", "echo 8.server")
        self.command("qstat", 'printf "    Resource_List.walltime = 01:00:00\\n    resources_used.walltime = 00:10:00\\n"')
        self.program('exit "${CODE:-0}"')

    def command(self, name, body):
        path = self.bin / name
        path.write_text(STAND_IN.format(name=name, body=body))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def program(self, body):
        self.command("program", body)

    def environment(self, **more):
        keep = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL") if name in os.environ}
        return {**keep, "PATH": f"{self.bin}:/usr/bin:/bin:/usr/sbin", "LOG": str(self.log), "TRIREME_HOME": str(ROOT),
                "TRIREME_BIN": str(self.bin / "program"), "TMPDIR": str(self.path),
                **{name: str(value) for name, value in more.items()}}

    def run(self, script, *words, **environment):
        """Returns exit code and standard error."""
        self.log.write_text("")
        done = subprocess.run(["bash", script, *words], cwd=self.path, env=self.environment(**environment), text=True,
                              capture_output=True, timeout=60, check=False)
        return done.returncode, done.stderr + done.stdout

    def calls(self, name):
        return [line for line in self.log.read_text().splitlines() if line.split()[0] == name]

    def nodefile(self, text="n1\nn1\nn2\nn2\n"):
        path = self.path / "nodes"
        path.write_text(text)
        return {"PBS_JOBID": "3.server", "PBS_NODEFILE": path, "PBS_O_WORKDIR": self.path, "PBS_JOBNAME": "job",
                "MPIEXEC_SAYS": "mpiexec (OpenRTE) 4.1.4"}


def script(name):
    return str(ROOT / name)


def test_scripts_and_what_submit_writes_pass_shellcheck(place):
    sources = [*ROOT.glob("slurm/*"), *ROOT.glob("pbs/*"), *ROOT.glob("share/job/*.sh")]
    try:
        done = subprocess.run(["shellcheck", "-x", *sources], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Skip("shellcheck is not installed") from None
    require_equal(done.returncode, 0, done.stdout)
    require(len(sources) >= 17, "scripts")
    (place.path / "sweep.txt").write_text("--set optimizer.lr=1e-3\n")
    kinds = [["--scheduler=slurm"], ["--scheduler=pbs"], ["--scheduler=slurm", "--chain=3"], ["--scheduler=pbs", "--chain=3"],
             ["--scheduler=slurm", "--sweep=sweep.txt"], ["--scheduler=pbs", "--sweep=sweep.txt"],
             ["--scheduler=slurm", "--nodes=4", "--stage=binary"], ["--scheduler=pbs", "--nodes=4", "--gpus-per-node=4"]]
    needs = ["--account=a", "--partition=p", "--option=-l filesystems=home"]
    for name in ("frontier", "perlmutter", "polaris", "aurora", "derecho", "lumi", "alps", "juwels", "vista", "leonardo"):
        pbs = name in ("polaris", "aurora", "derecho")
        kinds.append([f"--site={name}", "--nodes=2", *(needs if pbs else needs[:2])])
    checked = []  # shellcheck takes a second for each
    for number, options in enumerate(kinds):
        job = place.run("submit", *options, "--print", "train", "my file.yaml", "--set", "run.name=it's $HOME")
        path = place.path / f"{number}.sh"
        path.write_text(job.out)
        if not options[0].startswith("--site") or "lumi" in options[0] or "polaris" in options[0]:
            checked.append(path)
        require_equal(subprocess.run(["bash", "-n", path], check=False).returncode, 0, f"bash -n {options}")
    done = subprocess.run(["shellcheck", *checked], capture_output=True, text=True, check=False)
    require_equal(done.returncode, 0, done.stdout[:3000])


def test_every_code_is_answered_as_the_table_says(place):
    desk = Desk(place)
    for code, word in ((0, "done"), (85, "again"), (71, "retry"), (74, "retry"), (75, "retry"), (137, "retry"),
                       (2, "stop"), (64, "stop"), (65, "stop"), (69, "stop"), (70, "stop"), (79, "stop")):
        returned, said = desk.run(script("slurm/single-node.sbatch"), "my.yaml", **SLURM, CODE=code,
                                  TRIREME_MAX_RETRIES=9)
        require_equal(returned, code, f"code {code}: {said}")
        require(f"code {code}: {word}" in said, f"code {code}: {said}")
        requeued = any("requeue 7" in line for line in desk.calls("scontrol"))
        require_equal(requeued, word in ("again", "retry"), f"requeue after {code}: {said}")


def test_failures_in_a_row_are_tried_a_few_times(place):
    desk = Desk(place)
    for _ in range(3):
        _, said = desk.run(script("slurm/single-node.sbatch"), "my.yaml", **SLURM, CODE=75)
        require(desk.calls("scontrol")[-1] == "scontrol requeue 7", said)
    _, said = desk.run(script("slurm/single-node.sbatch"), "my.yaml", **SLURM, CODE=75)
    require("4 times in a row: not tried again" in said, said)
    require(not any("requeue" in line for line in desk.calls("scontrol")), said)
    # A limit shorter than the time to save in: it would go round for ever.
    for _ in range(3):
        desk.run(script("slurm/single-node.sbatch"), "my.yaml", **SLURM, CODE=85)
    _, said = desk.run(script("slurm/single-node.sbatch"), "my.yaml", **SLURM, CODE=85)
    require("after its start, 4 times in a row" in said, said)


def test_a_cancelled_job_is_not_requeued(place):
    desk = Desk(place)
    _, said = desk.run(script("slurm/single-node.sbatch"), "my.yaml", **SLURM, CODE=85, STATE="COMPLETING")
    require("it was cancelled, so it is not requeued" in said, said)
    # At the limit itself the state is the same.
    _, said = desk.run(script("slurm/single-node.sbatch"), "my.yaml", **SLURM, CODE=85, STATE="COMPLETING", LEFT="0:10")
    require("scontrol requeue 7" in desk.calls("scontrol"), said)


def test_the_rank_that_failed_first_gives_the_code(place):
    desk = Desk(place)
    desk.program('echo "srun: error: n1: task 0: Exited with exit code 79" >&2; sleep 0.1\n'
                 'echo "srun: error: n1: tasks 1-3: Killed" >&2; exit 137')
    code, said = desk.run(script("slurm/single-node.sbatch"), "my.yaml", **SLURM)
    require_equal(code, 79, said)
    require("code 79: stop" in said, said)


def test_signals_reach_the_ranks_once_and_the_script_waits_for_them(place):
    desk = Desk(place)
    desk.program('trap "echo usr1 >>$LOG; sleep 0.5; exit 85" USR1; touch started; for i in $(seq 100); do sleep 0.1; done')
    desk.command("srun", 'if [[ $* == *--mpi=list* ]]; then exit; fi\n'
                 'while [[ $# -gt 0 && $1 != */program ]]; do shift; done; exec "$@"')
    process = subprocess.Popen(["bash", script("slurm/chained.sbatch"), "my.yaml"], cwd=desk.path, text=True,
                               env=desk.environment(**SLURM, SLURM_SUBMIT_DIR=desk.path), stderr=subprocess.PIPE)
    while not (desk.path / "started").exists():
        time.sleep(0.02)
    time.sleep(0.1)
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.1)
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(timeout=30)
    require_equal(process.returncode, 85, said)
    require_equal(desk.log.read_text().count("usr1"), 1, "signals")
    require("got USR1" in said, said)


def test_a_chain_ends_for_all_its_links(place):
    desk = Desk(place)
    chained = {**SLURM, "SLURM_SUBMIT_DIR": desk.path}
    code, said = desk.run(script("slurm/chained.sbatch"), "my.yaml", **chained, CODE=85)
    require((code, desk.calls("scontrol")) == (85, []), f"in a chain the next link goes on: {said}")
    code, said = desk.run(script("slurm/chained.sbatch"), "my.yaml", **chained, SLURM_JOB_DEPENDENCY="afterany:7", CODE=0)
    require_equal(code, 0, said)
    code, said = desk.run(script("slurm/chained.sbatch"), "my.yaml", **chained, SLURM_JOB_DEPENDENCY="afterany:8", CODE=0)
    require("the chain ended with code 0 in job 7" in said and not desk.calls("program"), said)
    # The first link of another chain is not stopped by the old one's file.
    code, said = desk.run(script("slurm/chained.sbatch"), "my.yaml", **chained, CODE=64)
    require(desk.calls("program"), said)
    code, said = desk.run(script("slurm/chained.sbatch"), "my.yaml", **chained, SLURM_JOB_DEPENDENCY="afterany:7", CODE=0)
    require_equal(code, 64, said)


def test_a_site_never_changes_what_is_set(place):
    desk = Desk(place)
    desk.program('env >>"$LOG.env"')
    code, said = desk.run(script("slurm/multi-node-gpu.sbatch"), "my.yaml", **SLURM, TRIREME_SITE="perlmutter",
                          NCCL_SOCKET_IFNAME="mine")
    require_equal(code, 0, said)
    seen = (desk.path / "log.env").read_text()
    require("NCCL_SOCKET_IFNAME=mine" in seen and "NCCL_NET=AWS Libfabric" in seen, seen)
    require("kept NCCL_SOCKET_IFNAME=mine (the profile has hsn)" in said, said)
    require("site perlmutter: FI_MR_CACHE_MONITOR=userfaultfd" in said, said)
    code, said = desk.run(script("slurm/multi-node-gpu.sbatch"), "my.yaml", **SLURM, TRIREME_SITE="nowhere")
    require_equal(code, 64, said)


def test_a_site_gives_each_rank_its_device(place):
    desk = Desk(place)
    desk.program('echo "device $CUDA_VISIBLE_DEVICES $*" >>"$LOG"')
    profile = desk.path / "own.site"
    profile.write_text("title Own\nbind-gpus CUDA_VISIBLE_DEVICES reverse 4\nlaunch --flag\n")
    _, said = desk.run(script("slurm/single-node.sbatch"), "my.yaml", **SLURM, TRIREME_SITE=profile, SLURM_LOCALID="1")
    require("device 2 train my.yaml --resume auto" in desk.log.read_text(), said + desk.log.read_text())
    require(any("--flag" in line for line in desk.calls("srun")), said)


def test_arguments_and_resume(place):
    desk = Desk(place)
    desk.run(script("slurm/single-node.sbatch"), "my.yaml", "--set", "run.name=two words", **SLURM)
    require_equal(desk.calls("program"), ["program train my.yaml --set run.name=two words --resume auto"], "words")
    desk.run(script("slurm/single-node.sbatch"), "my.yaml", "--resume", "none", **SLURM)
    require_equal(desk.calls("program"), ["program train my.yaml --resume none"], "words")


def test_a_sweep_takes_its_line(place):
    desk = Desk(place)
    (desk.path / "sweep.txt").write_text("# rates\n\n--set optimizer.lr=1e-3\n--set optimizer.lr=1e-2 --set run.name=b\n")
    words = [script("slurm/array-sweep.sbatch"), "sweep.txt", "my.yaml"]
    desk.run(*words, **SLURM, SLURM_ARRAY_TASK_ID=1)
    require("--set optimizer.lr=1e-3 --set run.name=sweep-1" in desk.calls("program")[0], desk.log.read_text())
    desk.run(*words, **SLURM, SLURM_ARRAY_TASK_ID=2)
    require("--set optimizer.lr=1e-2 --set run.name=b" in desk.calls("program")[0], desk.log.read_text())
    code, said = desk.run(*words, **SLURM, SLURM_ARRAY_TASK_ID=3)
    require_equal(code, 64, said)
    pbs = desk.nodefile()
    _, said = desk.run(script("pbs/array-sweep.pbs"), **pbs, PBS_ARRAY_INDEX=2, TRIREME_ARGS="my.yaml")
    require("--set optimizer.lr=1e-2" in desk.calls("program")[0], said)


def test_ladders_print_a_table(place):
    desk = Desk(place)
    desk.program('echo "done step=1 loss=1 tokens=1000 seconds=2.0 checkpoint=x"')
    for kind, batches in (("strong", ["64", "64", "64"]), ("weak", ["8", "16", "32"])):
        code, said = desk.run(script(f"slurm/scaling-{kind}.sbatch"), "my.yaml", **SLURM)
        require_equal(code, 0, said)
        found = [re.search(r"global_batch_size=(\d+)", line).group(1) for line in desk.calls("program")]
        require_equal(found, batches, kind)
        rows = (desk.path / f"scaling-{kind}-7.csv").read_text().splitlines()
        require_equal(len(rows), 4, kind)
        require_equal(rows[3].split(",")[:2], ["4", "2"], "ranks and nodes of the last row")


def test_staging_copies_program_and_data(place):
    desk = Desk(place)
    (desk.path / "data").mkdir()
    local = desk.path / "local"
    desk.command("srun", 'if [[ $* == *--mpi=list* ]]; then exit; fi\n'
                 'while [[ $1 == -* ]]; do shift; done; "$@"')
    desk.command("sbcast", 'shift 2; cp "$1" "$2"')
    _, said = desk.run(script("slurm/single-node.sbatch"), "my.yaml", "--set", "data.train={local}/data", **SLURM,
                       TRIREME_STAGE="binary data", TRIREME_LOCAL=local)
    require_equal(desk.calls("program"), [f"program train my.yaml --set data.train={local}/trireme-7/data --resume auto"],
                  said)
    require(f"{local}/trireme-7/program train" in said, said)
    require(not (local / "trireme-7").exists(), "the copies are removed")


def test_pbs_starts_ranks_with_any_mpi(place):
    desk = Desk(place)
    for says, expected in (
            ("mpiexec (OpenRTE) 4.1.4", "-n 4 --map-by ppr:2:node --hostfile {nodes}"),
            ("mpiexec version 1.2 PALS", "-n 4 --ppn 2"),
            ("HYDRA build details", "-n 4 -ppn 2 -f {nodes}")):
        pbs = {**desk.nodefile(), "MPIEXEC_SAYS": says}
        code, said = desk.run(script("pbs/multi-node-cpu.pbs"), **pbs, TRIREME_ARGS="my.yaml")
        require_equal(code, 0, said)
        line = [line for line in desk.calls("mpiexec") if "--version" not in line][0]
        require(line.startswith("mpiexec " + expected.format(nodes=desk.path / "nodes")), f"{says}: {line}")


def test_open_mpi_takes_a_sites_variables_to_all_nodes(place):
    desk = Desk(place)
    profile = desk.path / "own.site"
    profile.write_text("title Own\nset NCCL_SOCKET_IFNAME ib0\n")
    _, said = desk.run(script("pbs/multi-node-cpu.pbs"), **desk.nodefile(), TRIREME_ARGS="my.yaml", TRIREME_SITE=profile)
    require(any("-x NCCL_SOCKET_IFNAME" in line for line in desk.calls("mpiexec")), said)


def test_pbs_knows_the_end_of_the_job(place):
    desk = Desk(place)
    desk.program('echo "end $((TRIREME_JOB_END_TIME - $(date +%s)))"')
    _, said = desk.run(script("pbs/single-node.pbs"), **desk.nodefile(), TRIREME_ARGS="my.yaml")
    left = int(re.search(r"end (\d+)", said).group(1))
    require(2990 <= left <= 3000, f"{left} s left of an hour after ten minutes")
    desk.command("qstat", "exit 1")
    _, said = desk.run(script("pbs/single-node.pbs"), **desk.nodefile(), TRIREME_ARGS="my.yaml")
    left = int(re.search(r"end (\d+)", said).group(1))
    require(3590 <= left <= 3600, f"{left} s left of TRIREME_WALLTIME")


def test_pbs_submits_again_what_stopped_by_itself(place):
    desk = Desk(place)
    again = {**desk.nodefile(), "TRIREME_ARGS": "my.yaml", "TRIREME_SCRIPT": script("pbs/single-node.pbs"), "CODE": "75"}
    code, said = desk.run(script("pbs/single-node.pbs"), **again)
    require_equal(code, 75, said)
    require_equal(desk.calls("qsub"), [f"qsub -W depend=afterany:3.server -v TRIREME_RETRIES=1 {script('pbs/single-node.pbs')}"],
                  said)
    _, said = desk.run(script("pbs/single-node.pbs"), **again, TRIREME_RETRIES=3)
    require("4 times in a row: not tried again" in said and not desk.calls("qsub"), said)
    _, said = desk.run(script("pbs/single-node.pbs"), **{**again, "CODE": "64"})
    require(not desk.calls("qsub"), said)


def test_submit_hands_the_script_over(place):
    desk = Desk(place)
    desk.command("sbatch", 'if [[ $1 == --version ]]; then exit; fi; echo "$((41 + $(grep -c parsable "$LOG")))"')
    (desk.path / "my.yaml").write_text("")
    environment = {"PATH": f"{desk.bin}:{os.environ['PATH']}", "LOG": str(desk.log)}
    job = place.run("submit", "--nodes=2", "--chain=2", "--name=mine", "train", "my.yaml", environment=environment)
    require_equal(job.out, "42\n43\n", "ids")
    require(any("--dependency=afterany:42" in line for line in desk.calls("sbatch")), desk.log.read_text())
    written = list(desk.path.glob("mine-*.sbatch"))
    require_equal(len(written), 1, "scripts")
    require(f"{written[0]}.chain" in written[0].read_text(), "the chain's file")
    job = place.run("submit", "--json", "train", "my.yaml", environment=environment)
    require('"scheduler": "slurm", "jobs": ["44"]' in job.out, job.out)


def test_submit_refuses_what_makes_no_sense(place):
    for words, code, text in (
            (["train", "x.yaml", "--scheduler=slurm"], 69, "neither sbatch nor qsub"),
            (["--site=perlmuter", "train", "x.yaml"], 64, "did you mean 'perlmutter'?"),
            (["--site=elcapitan", "train", "x.yaml"], 64, "flux"),
            (["--site=polaris", "--scheduler=slurm", "train", "x.yaml"], 64, "contradict each other"),
            (["--scheduler=slurm", "--time=60", "train", "x.yaml"], 64, "is no time limit"),
            (["--scheduler=slurm"], 2, "nothing to train"),
            (["--scheduler=slurm", "generate", "x"], 2, "cannot run 'generate'"),
            (["--scheduler=slurm", "--sweep=none.txt", "train", "x.yaml"], 74, "none.txt")):
        job = place.run("submit", *words, code=code, environment={"PATH": "/nonexistent"})
        require(text in job.err, f"{words}: {job.err}")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
