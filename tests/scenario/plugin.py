"""A model from a shared library: it trains as built-in models do, and what cannot be used says why."""
import json
import pathlib
import sys

import scenario

PLUGINS = pathlib.Path(scenario.BIN).resolve().parents[1] / "tests" / "plugins"
SETTINGS = {key: value for key, value in scenario.small(train__max_steps=6, train__eval_every=3).items()
            if not key.startswith("model.")}


def of(name, **changes):
    return {**SETTINGS, "model.plugin": str(PLUGINS / f"lib{name}.so"),
            **{key.replace("__", "."): value for key, value in changes.items()}}


def test_a_plugin_is_equal_on_any_number_of_ranks_and_goes_on_after_a_stop(place):
    for plugin, compute in (("test_plugin_gru", "fp32"), ("test_plugin_loss_only", "bf16"), ("test_plugin_loss_only", "fp16")):
        settings = of(plugin, precision__compute=compute, run__dir=f"{plugin}-{compute}")
        if plugin == "test_plugin_gru":
            settings["model.args"] = {"width": 48}
        place.train({**settings, "run.name": "one", "parallel.strategy": "ddp"})
        first = f"{plugin}-{compute}/one"
        for strategy, ranks, per_node in (("zero3", 2, 1), ("zero2", 4, 2), ("hsdp", 4, 2)):
            place.train({**settings, "run.name": strategy, "parallel.strategy": strategy}, ranks=ranks,
                        environment={"TRIREME_TEST_RANKS_PER_NODE": str(per_node)})
            place.require_equal_runs(f"{plugin}-{compute}/{strategy}", first)
        cut = {**settings, "run.name": "cut", "schedule.total_steps": 6}
        place.train({**cut, "train.max_steps": 3})
        place.train(cut, "--resume", "auto", ranks=2)
        scenario.require_equal(place.losses(f"{plugin}-{compute}/cut"), place.losses(first), "losses of the run in two parts")


def test_text_comes_from_scores_and_where_there_are_none_the_error_says_so(place):
    place.train(of("test_plugin_gru"))
    text = place.run("generate", "runs/run", "--prompt", "The ", "--tokens", 5).out
    scenario.require(text.startswith("The "), text)
    place.train(of("test_plugin_loss_only", run__name="loss"))
    job = place.start("generate", "runs/loss", "--tokens", 5).wait()
    scenario.require_equal(job.code, 64, job.describe())
    scenario.require("PluginModel::logits" in job.err, job.err)
    job = place.start("ckpt", "export", "runs/run", "--to", "out").wait()
    scenario.require(job.code != 0 and "plug-in" in job.err, job.describe())


def test_a_plan_measures_what_no_formula_tells(place):
    answer = json.loads(place.run("plan", place.config(of("test_plugin_gru")), "-n", 2, "--json").out)
    scenario.require_equal(answer["activations_by"], "measurement", "the source of the figure")
    scenario.require(answer["activations"] > 100_000, f"activations: {answer['activations']}")


def test_what_is_no_plugin_for_this_program_is_refused(place):
    (place.path / "text.so").write_text("no library")
    cases = [
        (of("absent"), ["libabsent.so", "trireme_add_plugin"]),
        ({**SETTINGS, "model.plugin": "text.so"}, ["text.so"]),
        (of("test_plugin_no_model"), ["registers no model", "TRIREME_REGISTER_MODEL"]),
        (of("test_plugin_other_build"), ["was built with trireme 0.0.9, LibTorch 2.1.0", "this is trireme"]),
        (of("test_plugin_gru", model__args={"widht": 4}), ["no argument is called widht", "model.args"]),
        (of("test_plugin_gru", model__layers=3), ["model.args"]),
        (of("test_plugin_gru", train__recompute="full"), ["trireme::checkpoint"]),
        ({**SETTINGS, "model.args": {"a": 1}}, ["no effect without model.plugin"]),
    ]
    for settings, words in cases:
        for ranks in (1, 2):
            job = place.start("train", place.config(settings), ranks=ranks).wait()
            scenario.require_equal(job.code, 64, job.describe())
            for word in words:
                scenario.require(word in job.err, f"no {word!r} in {job.err}")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
