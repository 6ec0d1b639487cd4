"""trireme eval: numbers that a person can check, the same on any number of ranks."""
import json
import math
import sys

import scenario

SETTINGS = scenario.small(train__max_steps=60, train__global_batch_size=16, optimizer__lr=1e-2, model__type="llama",
                          model__kv_heads=2)


def evaluate(place, *options, **more):
    """What was printed, by name."""
    out = place.run("eval", "runs/run", *options, **more).out
    return {line[:15].strip(): line[15:] for line in out.splitlines()}


def test_texts_are_scored_token_by_token_whatever_the_ranks(place):
    place.train(SETTINGS, ranks=2)
    text = scenario.text_of(700, seed=5)
    (place.path / "held.txt").write_text(text)
    with open(place.path / "held.jsonl", "w") as file:
        file.writelines(json.dumps({"body": part}) + "\n" for part in (text[:300], text[300:], "x"))
    alone = evaluate(place, "--text", "held.txt")
    for ranks in (2, 3):
        scenario.require_equal(evaluate(place, "--text", "held.txt", ranks=ranks), alone, f"scores on {ranks} ranks")
    scenario.require_equal(alone["tokens"], str(len(text.encode()) - 1), "tokens: every byte but the first")
    loss, size = float(alone["loss"]), len(text.encode())
    scenario.require(1 < loss < math.log(256) - 1, f"a loss that is no trained model's: {loss}")
    scenario.require(math.isclose(float(alone["perplexity"]), math.exp(loss), rel_tol=1e-7), f"perplexity: {alone}")
    bits = loss * (size - 1) / size / math.log(2)
    scenario.require(math.isclose(float(alone["bits per byte"]), bits, rel_tol=1e-7), f"bits per byte: {alone}")
    overlapping = evaluate(place, "--text", "held.txt", "--stride", 16)
    scenario.require_equal(overlapping["tokens"], alone["tokens"], "tokens of windows that overlap")
    scenario.require(overlapping["loss"] != alone["loss"], "the stride changes nothing")
    lines = evaluate(place, "--text", "held.jsonl", "--key", "body")
    scenario.require_equal((lines["documents"], lines["tokens"]), ("3", str(size - 2)), "documents and tokens of lines")
    place.run("eval", "runs/run", "--text", "held.txt", "--stride", 65, code=64)
    place.run("eval", "runs/run", code=64)


def test_the_likelier_choice_is_told_from_the_other(place):
    place.train(SETTINGS)
    text = scenario.text_of(4_000)
    questions = []
    for number in range(8):
        part = text[number * 100:number * 100 + 80]
        choices = [part[40:], "\x01\x02\x03\x04" * 10]
        answer = number % 2
        questions.append({"prompt": part[:40], "choices": choices if answer == 0 else choices[::-1], "answer": answer})
    (place.path / "choices.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    alone = evaluate(place, "--choices", "choices.jsonl")
    scenario.require_equal(alone, {"questions": "8", "right": "8 (1.0000)", "right by byte": "8 (1.0000)"}, "scores")
    scenario.require_equal(evaluate(place, "--choices", "choices.jsonl", ranks=3), alone, "scores on 3 ranks")
    (place.path / "choices.jsonl").write_text(json.dumps({**questions[0], "answer": 2}) + "\n")
    job = place.run("eval", "runs/run", "--choices", "choices.jsonl", code=65)
    scenario.require("choices.jsonl:1" in job.err, f"the line is not named: {job.describe()}")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
