"""A stage and a proved method in one small file: what CONTRIBUTING.md tells how to write.

The stage splits records at a threshold of their first feature and releases sums and counts of both
halves; the threshold moves to the middle of the halves' means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfedc.clustering.bound import Bound, origin_entry
from dpfedc.clustering.method import Method, declares_bound
from dpfedc.clustering.run_plan import NO_NOISE, RunPlan, private_stages
from dpfedc.clustering.stage import SLACK, Entry, Form, Stage, broadcast
from dpfedc.estimators.base import FederatedClusterer
from dpfedc.kernels.row_views import Columns, Standardized
from dpfedc.privacy.sums import OuterSum
from dpfedc.settings import number, whole


@dataclass(frozen=True)
class Halves(Stage):
    """Release ((x - origin) / bound, 1) summed over each half: sensitivity sqrt(2)."""

    n_rounds: int
    name = "halves"
    purpose = "sums and counts on both sides of a threshold"
    reads = ("origin", "bound", "threshold")
    n_clusters = 2

    def starts(self, known, n_features):
        within = lambda value, state: abs(float(value)) <= float(state["bound"]) * SLACK  # noqa: E731
        threshold = Entry((), within, needs=("bound",))
        return {"origin": known.get("origin", origin_entry(n_features)), "threshold": threshold}

    def upload(self, known, n_features):
        return Form((2, n_features + 1))

    def sensitivity(self, state, t):
        return math.sqrt(2) if "bound" in state else math.inf

    def start(self, state, public, randomness):
        zero = {"origin": public.asarray(np.zeros(public.n_features))}
        return {**zero, "threshold": public.asarray(np.asarray(0.0)), **state}

    def local(self, batch, state, t, sample, randomness):
        bound = state.get("bound", np.asarray(1.0))
        view = Standardized.of(batch.X, center=broadcast(state, "origin"), scale=bound)
        above = batch.X[:, 0] - state["origin"][0] > broadcast(state, "threshold")
        halves = np.stack([~above, above], axis=1).astype(batch.X.dtype)
        ones = np.ones(batch.n_records, batch.X.dtype)
        return OuterSum(halves, Columns.of(view, ones), np.sqrt(view.squared_norms + 1))

    def combine(self, state, released, t):
        value = np.asarray(released.value)
        means = value[:, :-1] / np.maximum(value[:, -1:], 1.0)
        bound = state.get("bound", np.asarray(1.0))
        middle = np.clip(means[:, 0].mean(), -1.0, 1.0) * bound
        return {**state, "threshold": middle, "centers": state["origin"] + bound * means}


class HalvesMethod(Method):
    """Two clusters: what lies below a threshold of the first feature, and what lies above."""

    name = "halves"
    settings = {  # noqa: RUF012
        "n_clusters": whole(2, 2),
        "n_rounds": whole(3, 1),
        "norm_bound": number("auto", free=("auto",), above=0),
    }

    def plan(self, given, facts, target, *, privacy=None):
        stages = [Halves(self.checked(given, facts).n_rounds)]
        if target is None:
            return RunPlan(tuple(stages), stamps=(NO_NOISE,))
        shares = {"halves": 1.0}
        if not declares_bound(given):
            stages.insert(0, Bound())
            shares = {"bound": 0.05, "halves": 0.95}
        told, privacy = private_stages(stages, shares, facts, target, privacy=privacy)
        return RunPlan(told, privacy=privacy)


class HalvesClusterer(FederatedClusterer):
    """The method as an estimator."""

    method_name = "halves"

    def __init__(
        self, n_clusters=2, *, epsilon: Any = 1.0, delta=1e-5, trust="local", n_rounds=3,
        norm_bound: Any = "auto", min_survivors=None, colluding_sites=0, random_state=None,
        diagnostics=False, on_round=None,
    ):  # fmt: skip
        self._keep(locals())
