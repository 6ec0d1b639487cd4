"""The examples run, learn, and give the same weights on 1 and 2 ranks."""
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scenario"))
from scenario import Place, main, require, require_equal  # noqa: E402

PROGRAMS = pathlib.Path(os.environ.get("TRIREME_EXAMPLES", "build/bin")).resolve()
EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "share" / "examples"


def example(place, name, *arguments, ranks=None):
    return place.run(*arguments, ranks=ranks, program=[str(PROGRAMS / f"example_{name}")])


def numbers(text, name):
    return [float(found) for found in re.findall(rf"{name} ([-\d.e+]+)", text)]


def same_weights(place, name, *folders):
    """Runs an example on 1 and 2 ranks; their files of weights must be equal. Returns what they print."""
    out = [example(place, name, f"{name}-{ranks}", ranks=ranks).out for ranks in (1, 2)]
    for folder in folders or [""]:
        files = [place.path / f"{name}-{ranks}" / folder / "model.safetensors" for ranks in (1, 2)]
        require_equal(files[1].read_bytes() == files[0].read_bytes(), True, f"weights of {name}/{folder} on 2 ranks as on 1")
    require_equal(out[1], out[0], f"what {name} prints on 2 ranks and on 1")
    return out[0]


def test_lesson(place: Place):
    plain = example(place, "lesson_plain").out
    require_equal(example(place, "lesson_accelerated").out, plain, "the accelerated lesson alone and the plain one")
    two = numbers(example(place, "lesson_accelerated", ranks=2).out, "loss")
    require(two[-1] < two[0], f"the lesson learns on 2 ranks: {two}")


def test_lesson_reads_side_by_side(_place: Place):
    code = {name: (EXAMPLES / "lesson" / name).read_text() for name in ("plain.cpp", "accelerated.cpp", "lesson.py")}
    require_equal(len(re.findall(r"// \*$", code["accelerated.cpp"], re.M)), 6, "changed lines")
    require(".to(" not in code["accelerated.cpp"], "no .to(device)")
    body = {name: text[text.index("main("):].strip().splitlines() for name, text in code.items()}
    require(len(body["accelerated.cpp"]) <= len(body["lesson.py"]), f"no more lines than Python: {body}")


def test_gradient_accumulation(place: Place):
    loss = numbers(same_weights(place, "gradient_accumulation"), "loss")
    require(loss[-1] < loss[0], f"it learns: {loss}")


def test_checkpoint(place: Place):
    whole = example(place, "checkpoint", "whole", ranks=2).out
    example(place, "checkpoint", "cut", "stop", ranks=2)
    rest = example(place, "checkpoint", "cut", ranks=1).out
    require("going on at step 6" in rest, f"it goes on: {rest}")
    require_equal(rest.splitlines()[-1], whole.splitlines()[-1], "the best loss, an object of one's own")
    weights = [(place.path / folder / "model.safetensors").read_bytes() for folder in ("whole", "cut")]
    require(weights[0] == weights[1], "2 ranks, stopped, then 1 rank: the weights of a run that was not cut")


def test_image_classifier(place: Place):
    out = same_weights(place, "image_classifier")
    found = re.findall(r"accuracy (\d+)/(\d+)", out)
    require_equal({of for _, of in found}, {"101"}, "images in the evaluation, each once")
    require(max(int(right) for right, _ in found) > 90, f"it learns: {found}")


def test_causal_lm(place: Place):
    loss = numbers(same_weights(place, "causal_lm"), "eval_loss")
    require(loss[-1] < 2, f"it learns: {loss}")
    lines = (place.path / "causal_lm-2" / "run" / "log.jsonl").read_text()
    require('"grad_norm"' in lines and '"learning_rate"' in lines, "the log has transformers' names")


def test_pair(place: Place):
    same_weights(place, "pair", "maker", "judge")


if __name__ == "__main__":
    sys.exit(main(globals()))
