"""What went wrong elsewhere in whole training runs, each as a test named after what the users saw."""
import math
import sys

import scenario

SETTINGS = scenario.small(train__max_steps=6, schedule__total_steps=6, schedule__warmup_steps=2, optimizer__lr=1e-3)


def rates_of(place, name, ranks, **changes):
    settings = {**SETTINGS, "run.name": name, **{key.replace("__", "."): value for key, value in changes.items()}}
    place.train(settings, ranks=ranks)
    return [line["lr"] for line in place.metrics(f"runs/{name}")]


def test_the_schedule_does_not_tick_once_for_each_rank_or_micro_batch(place):
    """accelerate: the scheduler advanced as many times a step as there were processes."""
    first = rates_of(place, "one", 1, schedule__type="cosine", schedule__min_lr_ratio=0.1)
    for update, rate in enumerate(first):
        if update < 2:
            expected = 1e-3 * update / 2
        else:
            expected = 1e-3 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (update - 2) / 4)))
        scenario.require(abs(rate - expected) < 1e-9, f"update {update}: {rate}, expected {expected}")
    for name, ranks, changes in (("two", 2, {}), ("four", 4, {}), ("accumulated", 2, {"train__micro_batch_size": 1}),
                                 ("zero3", 2, {"parallel__strategy": "zero3"})):
        found = rates_of(place, name, ranks, schedule__type="cosine", schedule__min_lr_ratio=0.1, **changes)
        scenario.require_equal(found, first, f"rates of {name}")


def test_every_sample_of_an_uneven_tail_is_evaluated_once(place):
    """accelerate: metrics counted samples of the last batch twice, or not at all, where ranks did not divide them."""
    (place.path / "tail.txt").write_text(scenario.text_of(64 * 11 + 1, seed=5))  # 11 sequences: batches of 2, 2, 2, 2, 2, 1
    losses = {}
    for ranks in (1, 2, 3, 4):
        settings = {**SETTINGS, "run.name": f"ranks-{ranks}", "train.global_batch_size": 24, "train.max_steps": 1,
                    "schedule.total_steps": 1, "schedule.warmup_steps": 0, "train.eval_every": 1, "train.eval_batches": 0,
                    "optimizer.lr": 1e-12, "data.eval": [{"path": "tail.txt"}]}
        place.train(settings, ranks=ranks)
        losses[ranks] = place.metrics(f"runs/ranks-{ranks}")[-1]["eval_loss"]
    scenario.require_equal({loss for ranks, loss in losses.items() if ranks != 3}, {losses[1]}, "evaluation losses")
    scenario.require(abs(losses[3] / losses[1] - 1) < 1e-6, f"three ranks: {losses}")
    # One sample a batch weighs every sample alike: a repeated or a lost one would show.
    settings.update({"run.name": "by-one", "train.micro_batch_size": 1})
    place.train(settings, ranks=2)
    by_one = place.metrics("runs/by-one")[-1]["eval_loss"]
    scenario.require(abs(by_one / losses[1] - 1) < 1e-5, f"in batches of one: {by_one}, {losses[1]}")


if __name__ == "__main__":
    sys.exit(scenario.main(globals()))
