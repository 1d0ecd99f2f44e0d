"""A small experiment on data that come with scikit-learn, for the tests of experiments."""

from dpfedc.research.experiments.experiment_spec import parsed_experiment

TINY = """
name = "tiny"
title = "A tiny experiment"
shown = "rounds"
track = "objective and accuracy"
[grid]
data = ["digits"]
partitions = ["iid", "non-iid"]
epsilons = ["none", 8.0]
sites_per_round = [3]
seeds = [0, 1]
[data.digits]
n_clusters = 4
n_sites = 6
non_iid = "two-labels"
[[methods]]
name = "dp-fedc"
variants = ["normalized"]
settings = { n_rounds = 3 }
[[methods]]
name = "pooled-k-means"
epsilons = ["none"]
partitions = ["iid"]
settings = { n_init = 1 }
[quick.grid]
seeds = [7]
[quick]
settings = { n_rounds = 2, batch_size = 5 }
"""


def tiny(old="", new=""):
    """Return the tiny experiment, with one part of its text replaced."""
    assert old in TINY
    return parsed_experiment(TINY.replace(old, new, 1) if old else TINY, "tiny.toml")
