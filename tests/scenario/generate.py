"""Text from a checkpoint is a function of the checkpoint, the prompt and the seed."""
import sys

import scenario

SETTINGS = scenario.small(train__max_steps=60, train__global_batch_size=16, optimizer__lr=1e-2, checkpoint__every=30)


def generate(place, *options, of="runs/run", **more):
    return place.run("generate", of, "--tokens", 60, *options, **more).out


def test_generated_text_depends_on_seed_and_temperature_only(place):
    place.train(SETTINGS, ranks=2)
    greedy = generate(place, "--prompt", "The ", "--temperature", 0)
    scenario.require(greedy.startswith("The "), f"does not begin with the prompt: {greedy!r}")
    scenario.require_equal(len(greedy.encode()), len("The ") + 60 + 1, "bytes written")
    scenario.require(greedy.endswith("\n"), "the last line has no end")
    for options in (("--seed", 7), (), ("--top-k", 5)):
        again = generate(place, "--prompt", "The ", "--temperature", 0, *options)
        scenario.require_equal(again, greedy, f"greedy text with {options}")
    scenario.require_equal(generate(place, "--prompt", "The ", "--top-k", 1, "--seed", 3), greedy, "text with one choice")
    one = generate(place, "--prompt", "The ", "--seed", 1)
    scenario.require_equal(generate(place, "--prompt", "The ", "--seed", 1), one, "text of the same seed")
    scenario.require(generate(place, "--prompt", "The ", "--seed", 2) != one, "two seeds write the same text")
    scenario.require(one != greedy, "temperature 1 writes what temperature 0 does")

    last = "runs/run/checkpoints/step-00000060"
    for where in ("runs/run/checkpoints", last, f"{last}/state.h5"):
        text = generate(place, "--prompt", "The ", "--temperature", 0, of=where)
        scenario.require_equal(text, greedy, f"text from {where}")
    earlier = generate(place, "--prompt", "The ", "--seed", 1, of="runs/run/checkpoints/step-00000030")
    scenario.require(earlier != one, "an earlier checkpoint writes the same text")


def test_a_context_full_of_text_and_an_empty_prompt_are_no_problem(place):
    place.train({**SETTINGS, "train.max_steps": 2, "model.type": "llama", "model.kv_heads": 2, "model.tied_head": False})
    prompt = scenario.text_of(300)
    text = place.run("generate", "runs/run", "--prompt", prompt, "--tokens", 5).out
    scenario.require(text.startswith(prompt), f"does not begin with the prompt: {text!r}")
    place.run("generate", "runs/run", "--tokens", 3)


def test_bad_options_are_refused(place):
    place.train({**SETTINGS, "train.max_steps": 2})
    (place.path / "empty").mkdir()
    cases = [
        (["runs/run", "--tokens", "0"], 64, ["--tokens"]),
        (["runs/run", "--tokens", "-3"], 64, ["--tokens"]),
        (["runs/run", "--temperature", "-1"], 64, ["--temperature"]),
        (["runs/run", "--temperature", "nan"], 64, ["--temperature"]),
        (["runs/run", "--top-k", "-1"], 64, ["--top-k"]),
        (["runs/run", "--tokens", "0", "--top-k", "-1"], 64, ["--tokens", "--top-k"]),
        (["runs/nowhere"], 64, ["runs/nowhere", "does not exist"]),
        (["empty"], 64, ["empty", "no complete checkpoint"]),
        (["text.txt"], 64, ["text.txt"]),
        (["runs/run", "--tokens", "many"], 2, ["--tokens"]),
        (["runs/run", "--seed", "-1"], 2, ["--seed"]),
        ([], 2, ["checkpoint"]),
    ]
    wrong = []
    for arguments, code, phrases in cases:
        job = place.run("generate", *arguments, code=None)
        missing = [phrase for phrase in phrases if phrase not in job.err]
        if job.code != code or missing or job.out.strip():
            wrong.append(f"expected {code} and {phrases}, and nothing on standard output: {job.describe()}")
    scenario.require(not wrong, "\n".join(wrong))


def test_a_damaged_checkpoint_writes_no_text(place):
    place.train({**SETTINGS, "train.max_steps": 2})
    state = place.path / "runs/run/checkpoints/step-00000002/state.h5"
    content = bytearray(state.read_bytes())
    content[len(content) // 4] ^= 1
    state.write_bytes(content)
    job = place.run("generate", "runs/run", "--prompt", "The ", code=65)
    scenario.require("damaged" in job.err, f"does not say why: {job.describe()}")
    scenario.require_equal(job.out, "", "text from a damaged checkpoint")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
