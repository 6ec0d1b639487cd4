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


def test_a_trained_tokenizer_tokenizes_on_two_ranks_and_its_model_writes_text(place):
    text = scenario.text_of(60_000)
    with open(place.path / "lines.jsonl", "w") as file:
        file.writelines(json.dumps({"text": text[i:i + 600]}) + "\n" for i in range(0, len(text), 600))
    tokenize = ["data", "tokenize", "lines.jsonl", "--tokenizer", "tokenizer.json", "--train-bpe", 300]
    place.run(*tokenize, "--to", "two", ranks=2)
    place.run(*tokenize, "--to", "one", "--threads", 2)
    for part in (place.path / "one").iterdir():
        scenario.require_equal((place.path / "two" / part.name).read_bytes(), part.read_bytes(), part.name)
    again = place.run(*tokenize, "--to", "one")
    scenario.require("1 of them were there" in again.err, f"nothing was kept: {again.describe()}")
    looked = place.run("data", "inspect", "one", "--verify", "--tokenizer", "tokenizer.json").out
    for phrase in ("format", "tokens", "100, the longest", "match their checksums"):
        scenario.require(phrase in looked, f"inspect does not say '{phrase}': {looked}")

    place.train({**MIXED, "data.train": [{"path": "one", "format": "tokens"}], "data.tokenizer": "tokenizer.json"}, ranks=2)
    (place.path / "tokenizer.json").unlink()  # the checkpoint has its own
    first = place.run("generate", "runs/run", "--prompt", "The ", "--tokens", 20, "--top-p", 0.9, "--min-p", 0.01,
                      "--repetition-penalty", 1.1).out
    scenario.require(first.startswith("The ") and len(first) > 20, f"no text: {first!r}")
    stop = first[10:13]
    cut = place.run("generate", "runs/run", "--prompt", "The ", "--tokens", 20, "--top-p", 0.9, "--min-p", 0.01,
                    "--repetition-penalty", 1.1, "--stop", stop).out
    scenario.require_equal(cut, first[:first.index(stop, 4)] + "\n", f"text that stops before {stop!r}")
    place.run("ckpt", "export", "runs/run", "--to", "exported")
    scenario.require_equal(json.loads((place.path / "exported" / "tokenizer.json").read_text())["model"]["type"], "BPE",
                           "the exported tokenizer")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
