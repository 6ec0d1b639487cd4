"""Data that people have, in a run: packed JSON lines and files of tokens mixed, the same on any number of ranks and
after a resume; what is damaged is named before the first step."""
import array
import gzip
import json
import struct
import sys

import scenario

MIXED = scenario.small(train__max_steps=6, train__eval_every=3)


def write_sources(place):
    """A file of JSON lines, packed, and one of bare tokens."""
    text = scenario.text_of(30_000)
    lines = [json.dumps({"body": text[i:i + 700]}) + "\n" for i in range(0, len(text), 700)]
    with gzip.open(place.path / "lines.jsonl.gz", "wt") as file:
        file.writelines(lines)
    with open(place.path / "tokens.bin", "wb") as file:
        array.array("H", list(text[:8000].encode())).tofile(file)
    return {**MIXED, "data.train": [{"path": "lines.jsonl.gz", "format": "jsonl", "key": "body", "weight": 0.5},
                                    {"path": "tokens.bin", "format": "nanogpt", "weight": 3}]}


def test_a_mixture_of_formats_is_equal_on_two_ranks_and_after_a_resume(place):
    settings = write_sources(place)
    place.train({**settings, "run.name": "alone"})
    place.train({**settings, "run.name": "two"}, ranks=2)
    place.require_equal_runs(f"{settings['run.dir']}/two", f"{settings['run.dir']}/alone")
    stopped = {**settings, "run.name": "stopped"}
    place.train({**stopped, "train.max_steps": 3, "schedule.total_steps": 6})
    place.train(stopped, "--resume", "auto", ranks=2)
    scenario.require_equal(place.hash_of(f"{settings['run.dir']}/stopped"),
                           place.hash_of(f"{settings['run.dir']}/alone"), "weights after a resume")


def test_damaged_files_are_named_with_their_offset_before_the_first_step(place):
    settings = write_sources(place)
    (place.path / "short.bin").write_bytes(struct.pack("<3i", 20240520, 1, 5000) + bytes(1012) + bytes(6000))
    with open(place.path / "odd.bin", "wb") as file:
        file.write(bytes(2001))
    (place.path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": 3}\n')
    packed = (place.path / "lines.jsonl.gz").read_bytes()
    (place.path / "cut.jsonl.gz").write_bytes(packed[:len(packed) // 2])
    for name, kind, phrases in (("short.bin", "llm.c", ["truncated", "7024"]), ("odd.bin", "nanogpt", ["2000"]),
                                ("bad.jsonl", "jsonl", [":2", "offset 17", "number"]),
                                ("cut.jsonl.gz", "jsonl", ["cut.jsonl.gz"])):
        job = place.train({**settings, "data.train": [{"path": name, "format": kind}]}, ranks=2, code=64)
        for phrase in [name, *phrases]:
            scenario.require(phrase in job.err, f"{name}: no '{phrase}': {job.describe()}")
        scenario.require(not (place.path / "runs").exists(), f"{name}: a run was begun")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
