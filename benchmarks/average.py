"""What the mean of the last posteriors is worth: python benchmarks/average.py RUN --steps 2400 --windows 300 1000

Goes on with a run of `tagi train … --set average=0` from its checkpoint, in memory, and measures the test set with
the last posterior and with means over several windows, three times on the way.
"""

from __future__ import annotations

import argparse
import json

from torchtagi.experiments.classify.prediction import predict, scores
from torchtagi.experiments.classify.train import Step, Training
from torchtagi.experiments.runs.folder import Run
from torchtagi.inference.average import Average


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run folder with a checkpoint")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--windows", type=int, nargs="+", default=[300, 1000, 3000])
    given = parser.parse_args()
    training = Training.resume(Run.open(given.run))
    training.run = None  # nothing more is written
    learner, test = training.learner, training.test
    assert test.labels is not None
    averages = {window: Average(learner.net, window) for window in given.windows}
    nets = {1: learner.net, **{window: average.net for window, average in averages.items()}}
    done = 0
    for event in training.events():
        if not isinstance(event, Step):
            continue
        done += 1
        for average in averages.values():
            average.follow()
        if done % max(given.steps // 3, 1) == 0:
            for window, net in nets.items():
                found = scores(predict(net, learner.likelihood, test.images), test.labels)
                print(json.dumps({"steps": done, "window": window, **found}), flush=True)
        if done == given.steps:
            return


if __name__ == "__main__":
    main()
