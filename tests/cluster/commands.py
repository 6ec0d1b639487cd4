"""trireme env and trireme doctor as a user calls them, alone, under mpirun, and in recorded environments of launchers."""
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scenario"))
import scenario  # noqa: E402
from scenario import require, require_equal  # noqa: E402


def findings(job):
    return {finding["check"]: finding for finding in json.loads(job.out)["findings"]}


def test_doctor_looks_at_this_machine(place):
    for ranks in (None, 1, 3):
        before = place.listing()
        job = place.run("doctor", "--json", ranks=ranks)
        found = findings(job)
        require_equal(json.loads(job.out)["faults"], 0, f"faults: {job.describe()}")
        require({"MPI", "limits", "shared memory", "run folder", "file locks", "node windows", "parallel HDF5", "clocks",
                 "products"} <= set(found), f"checks on {ranks} ranks: {sorted(found)}")
        require("network" not in found, "there is one node")
        require_equal(place.listing().keys(), before.keys(), "files left behind")
    text = place.run("doctor").out
    require("0 faults" in text and text.count("\n") >= 10, text)


def test_doctor_looks_at_nodes_together(place):
    job = place.run("doctor", "--json", ranks=4, environment={"TRIREME_TEST_RANKS_PER_NODE": "2"})
    require_equal(json.loads(job.out)["nodes"], 2, "nodes")
    require("GB/s between nodes" in findings(job)["network"]["text"], job.out)
    require_equal(findings(job)["shared folder"]["severity"], "good", job.out)


def test_doctor_returns_69_for_a_fault_and_says_what_to_do(place):
    for ranks in (None, 2):
        job = place.run("doctor", "--folder", "/proc", "--json", ranks=ranks, code=69)
        fault = findings(job)["run folder"]
        require_equal(fault["severity"], "fault", job.out)
        require("--folder" in fault["remedy"], job.out)


def test_env_shows_build_machine_and_settings(place):
    job = place.run("env", "--json", environment={"UCX_TLS": "tcp"})
    answer = json.loads(job.out)
    require_equal(answer["place"], {"launcher": "none"}, "place")
    require_equal(answer["settings in the environment"]["UCX_TLS"], "tcp", "settings")
    require(answer["build"]["MPI"] and answer["machine"]["memory"], job.out)
    job = place.run("env", ranks=3)
    require_equal(job.out.count("told by"), 1, f"one rank answers: {job.out}")


def recorded(name):
    environment, truth = {}, {}
    for line in (HERE / "data/env" / name).read_text().splitlines():
        if line.startswith("#: "):
            truth = dict(word.split("=") for word in line[3:].split())
        elif not line.startswith("#"):
            environment.__setitem__(*line.split("=", 1))
    return environment, truth


def test_env_finds_its_place_in_recorded_environments(place):
    for name, launcher in (("srun.r3", "Slurm"), ("salloc-hydra.r3", "Hydra"), ("openpbs-mpirun.r3", "Open MPI"),
                           ("constructed-pals.r3", "PALS"), ("constructed-flux.r3", "Flux"), ("torchrun.r1", "torch elastic"),
                           ("constructed-jsrun.r3", "jsrun"), ("constructed-mvapich2.r1", "MVAPICH2")):
        environment, truth = recorded(f"{name}.env")
        environment["PATH"] = "/nonexistent"  # no scheduler to ask
        program = ["env", "-i", *(f"{key}={value}" for key, value in environment.items()),
                   f"{scenario.MARK}={place.mark}", os.path.realpath(scenario.BIN)]
        answer = json.loads(place.run("env", "--json", "--all-ranks", program=program).out)["place"]
        require_equal((answer["launcher"], answer["rank"]), (launcher, f"{truth['rank']} of {truth['size']}"), name)
        require_equal(answer["local rank"], f"{truth['local_rank']} of {truth['local_size']}", name)


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
