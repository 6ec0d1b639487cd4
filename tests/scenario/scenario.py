"""What the scenario tests share: they run the trireme program as a user does, alone and under mpirun, and look at what
it leaves behind.

A script is a list of functions named test_*, each of which takes a Place: a folder of its own that is removed when the
function ends, together with every process that was started from it. main() runs them all, or those whose names contain
a word of the command line, and returns 0, 1, or 77 when all were skipped. Standard library only.
"""
import contextlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

BIN = os.environ.get("TRIREME_BIN", "build/release/bin/trireme")
MPIRUN = shlex.split(os.environ.get("TRIREME_MPIRUN", "mpirun --oversubscribe --bind-to none"))
PYTHON = os.environ.get("TRIREME_PYTHON", sys.executable)
# Wide: a busy machine must not fail a test. What has a promised time is measured by the test itself.
PATIENCE_S = 90
MARK = "TRIREME_SCENARIO_PLACE"


class Failure(Exception):
    """What a test found wrong."""


class Skip(Exception):
    """Why a test cannot run here."""


def require(condition, what):
    if not condition:
        raise Failure(what)


def require_equal(found, expected, what):
    require(found == expected, f"{what}: found {found!r}, expected {expected!r}")


def small(**changes):
    """Settings of a model that trains in a second; changes are written model__hidden=32."""
    settings = {
        "run.name": "run", "run.dir": "runs",
        "model.type": "gpt2", "model.layers": 2, "model.hidden": 64, "model.heads": 4, "model.context": 64,
        "data.train": [{"path": "text.txt"}], "data.sequence_length": 64,
        "train.global_batch_size": 8, "train.micro_batch_size": 2, "train.max_steps": 10, "train.eval_every": 0,
        "optimizer.lr": 3e-3, "schedule.warmup_steps": 2,
        "precision.compute": "fp32", "log.tensorboard": False,
    }
    settings.update({key.replace("__", "."): value for key, value in changes.items()})
    return settings


def as_yaml(settings):
    """A section a line; JSON is YAML."""
    sections = {}
    for key, value in settings.items():
        section, field = key.split(".", 1)
        sections.setdefault(section, {})[field] = value
    return "".join(f"{name}: {json.dumps(fields)}\n" for name, fields in sections.items())


def text_of(num_bytes, seed=1):
    """Sentences of made-up words, some far more frequent than others, the same for the same seed."""
    draw = random.Random(seed)
    letters = "etaoinshrdlu"
    words = ["".join(draw.choice(letters) for _ in range(draw.randint(1, 8))) for _ in range(200)]
    text = ""
    while len(text) < num_bytes:
        picked = [words[min(int(draw.expovariate(0.05)), 199)] for _ in range(draw.randint(4, 12))]
        text += " ".join(picked).capitalize() + ".\n"
    return text[:num_bytes]


class Job:
    """A program that was started; its output goes to files, so that nobody waits for a pipe."""

    def __init__(self, place, command, environment):
        self.command = " ".join(command)
        number = len(place.jobs)
        self._streams = [place.scratch / f"job-{number}.{name}" for name in ("out", "err")]
        self._place = place
        self.started = time.monotonic()
        with open(self._streams[0], "wb") as out, open(self._streams[1], "wb") as err:
            self.process = subprocess.Popen(command, cwd=place.path, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, start_new_session=True)
        self.code = None
        self.seconds = None

    @property
    def out(self):
        return self._streams[0].read_text(errors="replace")

    @property
    def err(self):
        return self._streams[1].read_text(errors="replace")

    def wait(self, patience=PATIENCE_S):
        """Until it has ended; a job that does not is a failure."""
        try:
            self.code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise Failure(f"did not end within {patience} s: {self.describe()}") from None
        self.seconds = time.monotonic() - self.started
        return self

    def rank_pids(self):
        """Process ids by rank, of the ranks that live."""
        pids = {}
        for pid, environment in self._place.processes():
            with contextlib.suppress(OSError):
                if os.path.realpath(f"/proc/{pid}/exe") != os.path.realpath(BIN):
                    continue
                for variable in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"):
                    if variable in environment:
                        pids[int(environment[variable])] = pid
                        break
                else:
                    pids[0] = pid
        return pids

    def until(self, condition, what, patience=PATIENCE_S):
        """Waits for something to happen while the job runs."""
        end = time.monotonic() + patience
        while not condition():
            require(self.process.poll() is None, f"ended before {what}: {self.describe()}")
            require(time.monotonic() < end, f"waited {patience} s for {what}: {self.describe()}")
            time.sleep(0.01)

    def describe(self):
        return f"{self.command}\n  exit code {self.process.poll()}\n{indented(self.out)}{indented(self.err)}"

    def errors(self):
        """The error reports on standard error, with the program's name or, as in a log, without."""
        return re.findall(r"^(?:trireme: )?error \(.*(?:\n  .*)*", self.err, re.M)


def indented(text, most=4000):
    return "".join(f"  | {line}\n" for line in text[-most:].splitlines())


class Place:
    """A folder with text.txt (60 KB) in it, in which jobs run."""

    def __init__(self, path):
        self.mark = uuid.uuid4().hex
        self.path = path / "work"
        self.scratch = path / "output"
        self.jobs = []
        self.path.mkdir()
        self.scratch.mkdir()
        (self.path / "text.txt").write_text(text_of(60_000))

    def config(self, settings=None, name="job.yaml"):
        (self.path / name).write_text(as_yaml(settings or small()))
        return name

    def start(self, *arguments, ranks=None, environment=None, program=None):
        """ranks=None: alone, without mpirun. program: a command that runs trireme in its own way."""
        launcher = [] if ranks is None else [*MPIRUN, "-np", str(ranks)]
        full = {**os.environ, **(environment or {}), MARK: self.mark}
        job = Job(self, [*launcher, *(program or [BIN]), *map(str, arguments)], full)
        self.jobs.append(job)
        return job

    def run(self, *arguments, code=0, patience=PATIENCE_S, **options):
        """Runs to the end and requires this exit code (None: any)."""
        job = self.start(*arguments, **options).wait(patience)
        require(code is None or job.code == code, f"expected exit code {code}: {job.describe()}")
        return job

    def train(self, settings, *arguments, **options):
        return self.run("train", self.config(settings), *arguments, **options)

    def metrics(self, run="runs/run"):
        """One dictionary a line."""
        return [json.loads(line) for line in (self.path / run / "metrics.jsonl").read_text().splitlines()]

    def column(self, name, run="runs/run"):
        """A column of the metrics by step, as it is written, which is more than equality of numbers asks for; steps that
        lack it are left out. A step that was done again after a resume must come out the same."""
        found = {}
        for line in (self.path / run / "metrics.jsonl").read_text().splitlines():
            step, text = json.loads(line)["step"], re.search(rf'"{name}":([^,}}]*)', line)
            if text:
                require_equal(text.group(1), found.setdefault(step, text.group(1)), f"{name} of step {step} done again in {run}")
        return found

    def losses(self, run="runs/run"):
        """In the order of steps, as text."""
        return [text for _, text in sorted(self.column("loss", run).items())]

    def require_equal_runs(self, run, expected):
        """Equal losses and norms, as text, and final checkpoints without a difference."""
        for name in ("loss", "grad_norm", "eval_loss"):
            first, second = self.column(name, run), self.column(name, expected)
            require(first or name == "eval_loss", f"{run} has no {name}")
            require_equal(sorted(first), sorted(second), f"steps with {name} in {run}")
            for step, ours in first.items():
                require(ours == second[step],
                        f"{name} of step {step} is {ours} in {run} and {second[step]} in {expected}")
        self.run("ckpt", "diff", run, expected)

    def hash_of(self, run):
        return self.run("ckpt", "hash", run).out.split()[0]

    def checkpoints(self, run="runs/run"):
        """Names of the committed ones, oldest first."""
        folder = self.path / run / "checkpoints"
        return sorted(path.name for path in folder.glob("step-*") if "." not in path.name)

    def listing(self):
        """Every file below the folder with its size and time, and every folder: to see that nothing changed."""
        found = {}
        for path in sorted(self.path.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                found[str(path.relative_to(self.path))] = (status.st_size, status.st_mtime_ns) if path.is_file() else None
        return found

    def processes(self):
        """Those that were started from here, with their environments."""
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
                if environment.get(MARK) == self.mark:
                    yield int(folder.name), environment

    def clean_up(self):
        for _ in range(50):
            pids = [pid for pid, _ in self.processes()]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for job in self.jobs:
                job.process.poll()
            if not pids:
                return
            time.sleep(0.05)


@contextlib.contextmanager
def place():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-scenario-"))
    here = Place(folder)
    try:
        yield here
    finally:
        here.clean_up()
        shutil.rmtree(folder, ignore_errors=True)


def main(names, arguments=None):
    """names: globals() of the script."""
    words = sys.argv[1:] if arguments is None else arguments
    # Being ended by the test driver must not leave jobs behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tests = [(name, test) for name, test in names.items() if name.startswith("test_") and callable(test)]
    tests = [(name, test) for name, test in tests if not words or any(word in name for word in words)]
    results = []
    for name, test in tests:
        start = time.monotonic()
        try:
            with place() as here:
                test(here)
            result, detail = "ok", ""
        except Skip as skip:
            result, detail = "skipped", f": {skip}"
        except Failure as failure:
            result, detail = "FAILED", f": {failure}"
        results.append(result)
        print(f"{result:8} {name} ({time.monotonic() - start:.1f} s){detail}", flush=True)
    if "FAILED" in results or not results:
        return 1
    return 77 if set(results) == {"skipped"} else 0
