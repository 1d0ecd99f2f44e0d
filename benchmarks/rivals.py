"""The rivals: plain loops over sites, pooled k-means of three libraries, Flower's simulation.

The plain method (plain.py) comes twice: with X W' computed once a round, as someone writes it who
has seen that it can be; and with the gradients taken from the residuals X - H W at every step, as
the formulas stand.

Every rival returns what it took, what it scored, and in words what it did. The pooled ones see all
records in one place, and only diffprivlib adds noise: they are there for scale, not as equals.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case
from environments import run_in
from measuring import Seconds
from plain import Plain, cluster, labels, standardised, start
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning

from dpfedc.kernels.metrics import clustering_accuracy, kmeans_cost


def scores(case: Case, found: Any) -> dict[str, float | None]:
    """Return accuracy (None without labels) and the least k-means cost that these labels allow."""
    accuracy = None if case.y is None else clustering_accuracy(case.y, found)
    return {"accuracy": accuracy, "cost": kmeans_cost(case.X, found)}


def plain_of(case: Case, fitted: Any) -> Plain:
    """Return the plain method with the numbers that a fit's plan came to."""
    rounds = [r for r in fitted.history_.rounds if r.stage == "factorisation"]
    s, release = case.settings, rounds[0].release
    return Plain(
        s.n_clusters,
        s.n_rounds,
        s.sites_per_round,
        s.membership_steps,
        s.clip_norm,
        s.step,
        s.momentum,
        orthogonality=fitted.model_.penalty.orthogonality,
        noise_std=release["noise_multiplier"] * release["sensitivity"] if release else 0.0,
    )


def in_process(case: Case, fitted: Any) -> dict[str, Callable[[], Any]]:
    """Return the rivals that share this process; each returns labels."""
    plain, model = plain_of(case, fitted), fitted.model_
    literal = replace(plain, reuse_products=False)
    k, seed = case.settings.n_clusters, case.settings.random_state

    def loop(plain: Plain) -> Any:
        X = standardised(case.X, model.center.astype(np.float32), model.scale)
        W = start(k, X.shape[1], seed)
        W = cluster(np.split(X, case.offsets[1:-1]), plain, W, seed)
        return labels(X, W, plain)

    def pooled(kind: Any) -> Callable[[], Any]:
        def fit() -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                return kind(k, n_init=1, random_state=seed).fit(case.X).labels_

        return fit

    return {
        "loop over sites": lambda: loop(plain),
        "loop over sites, residuals every step": lambda: loop(literal),
        "scikit-learn KMeans, pooled": pooled(KMeans),
        "scikit-learn MiniBatchKMeans, pooled": pooled(MiniBatchKMeans),
    }


def diffprivlib(case: Case, repeats: int) -> tuple[list[Seconds], Any]:
    """Return times and labels of diffprivlib's k-means on pooled records, with the same epsilon.

    The least and largest value of each feature are handed to it as if they were public.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "X.npy", case.X)
        rival = {
            "n_clusters": case.settings.n_clusters,
            "epsilon": case.settings.epsilon,
            "least": case.X.min(axis=0).tolist(),
            "largest": case.X.max(axis=0).tolist(),
        }
        (folder / "rival.json").write_text(json.dumps(rival))
        run_in("diffprivlib", "diffprivlib_kmeans.py", name, str(repeats), timeout_s=1800)
        took = json.loads((folder / "seconds.json").read_text())
        pairs = zip(took["wall"], took["cpu"], strict=True)
        return [Seconds(wall, cpu) for wall, cpu in pairs], np.load(folder / "labels.npy")


def flower(case: Case, fitted: Any, rounds: int) -> dict[str, Any]:
    """Return seconds of a few rounds of Flower's simulation, and of all rounds at that pace."""
    # The engine's sockets have long names, and the folder's is a part of them.
    with tempfile.TemporaryDirectory(prefix="fl") as name:
        folder, plain, model = Path(name), plain_of(case, fitted), fitted.model_
        X = standardised(case.X, model.center.astype(np.float32), model.scale)
        np.save(folder / "standardised.npy", X)
        np.save(folder / "start.npy", start(case.settings.n_clusters, X.shape[1]))
        settings = {"plain": asdict(plain), "offsets": case.offsets.tolist()}
        (folder / "plain.json").write_text(json.dumps(settings))
        quiet = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(folder / "flwr"),
            "RAY_TMPDIR": name,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.fspath(Path(__file__).parent),
        }
        run_in("flower", "flower_simulation.py", name, str(rounds), timeout_s=1800, **quiet)
        took = json.loads((folder / "seconds.json").read_text())
    pace = statistics.median(took["rounds"])
    return {
        "start_up_s": took["start_up"],
        "rounds_measured": rounds,
        "seconds_per_round": pace,
        "seconds_of_all_rounds": pace * case.settings.n_rounds,
        "note": f"{case.settings.n_rounds} rounds at the median pace of {rounds}; start-up apart",
    }
