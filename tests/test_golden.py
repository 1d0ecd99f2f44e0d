"""Runs whose results were written down: a change of the code must not change them.

Each run is small and has a seed. What it gave is in golden/runs.json, made by

    python tests/test_golden.py

In double precision results must be the same to 1e-12, in single precision to 1e-4, and the integers
of exact sums must be equal. Other versions of NumPy or SciPy, or other processors, round in other
ways: then to 1e-6. Noise of the exact runs enters by the site's constructor alone.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy
from sklearn.datasets import load_digits, make_blobs
from threadpoolctl import threadpool_info

from dpfedc import DPFedC
from dpfedc.deployment.messages import Answer
from dpfedc.errors import UtilityWarning
from dpfedc.estimators.federated_kmeans import DPLloyd, FederatedKMeans
from dpfedc.privacy.noise import SecureNoise
from dpfedc.research.rivals.coreset_kmedian import CoresetKMedian
from dpfedc.research.rivals.fuzzy_cmeans import FederatedFuzzyCMeans
from dpfedc.research.rivals.k_fed import KFed
from dpfedc.research.rivals.kmeans_parallel import KMeansParallel
from support.deployment import MemoryTransport, agreed, by_site, node

FILE = Path(__file__).parent / "golden" / "runs.json"
TOLERANCES = {"float64": 1e-12, "float32": 1e-4}


def environment():
    """Return what decides over the last digits."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    blas = sorted({str(library.get("architecture")) for library in libraries})
    return {"numpy": np.__version__, "scipy": scipy.__version__, "blas": blas}


def written():
    """Return the results that were written down, and the least tolerance that they are good for."""
    content = json.loads(FILE.read_text())
    return content, 0.0 if content["environment"] == environment() else 1e-6


def digits(dtype):
    X, _ = load_digits(return_X_y=True)
    return X[:600].astype(dtype), np.arange(600) % 20


def blobs(dtype):
    X, _ = make_blobs(n_samples=800, centers=5, n_features=4, cluster_std=1.0, random_state=3)
    return (X + 20).astype(dtype), np.repeat(np.arange(8), [10, 30, 60, 100, 100, 150, 150, 200])


def positive(dtype):
    X, sites = digits(dtype)
    return X / 16, sites


RUNS = {
    "dp-fedc, secure aggregation": (
        DPFedC(10, epsilon=8.0, trust="secure-aggregation", shape="round", random_state=0),
        digits, "float64",
    ),
    "dp-fedc, any shape": (
        DPFedC(10, epsilon=8.0, trust="secure-aggregation", random_state=0), digits, "float64",
    ),
    "dp-fedc, a choice of k": (
        DPFedC("auto", k_range=(2, 8), epsilon=4.0, trust="secure-aggregation", random_state=1),
        blobs, "float64",
    ),
    "dp-fedc, local, single precision": (
        DPFedC(10, epsilon=20.0, trust="local", random_state=1), digits, "float32",
    ),
    "dp-fedc, no noise, some sites, diagnostics": (
        DPFedC(10, epsilon=None, sites_per_round=5, n_rounds=12, diagnostics=True, random_state=2),
        digits, "float64",
    ),
    "dp-fedc, refined, trusted server": (
        DPFedC(5, epsilon=4.0, trust="trusted-server", random_state=3), blobs, "float64",
    ),
    "dp-fedc, refined, single precision": (
        DPFedC(5, epsilon=8.0, trust="secure-aggregation", min_survivors=6, colluding_sites=1,
               random_state=4), blobs, "float32",
    ),
    "dp-fedc, sampled records": (
        DPFedC(5, epsilon=8.0, trust="secure-aggregation", sampling_probability=0.3, n_rounds=8,
               random_state=5), blobs, "float64",
    ),
    "dp-fedc, local steps": (
        DPFedC(5, epsilon=8.0, trust="secure-aggregation", extra_steps=3, n_rounds=6,
               random_state=6), blobs, "float64",
    ),
    "dp-fedc, sums and Gram, constant": (
        DPFedC(10, epsilon=20.0, trust="secure-aggregation", update="sums-and-gram", n_rounds=6,
               constant_feature=0.5, random_state=7), digits, "float64",
    ),
    "dp-fedc, subspace, ranges": (
        DPFedC(10, epsilon=20.0, trust="secure-aggregation", subspace=6, sites_per_round=10,
               feature_ranges=np.array([[0.0, 16.0]] * 64), random_state=8), digits, "float64",
    ),
    "dp-fedc, restarts": (
        DPFedC(10, epsilon=None, n_restarts=3, n_rounds=8, random_state=9), digits, "float64",
    ),
    "dp-lloyd": (DPLloyd(5, epsilon=8.0, random_state=10), blobs, "float64"),
    "federated k-means": (FederatedKMeans(5, n_rounds=8, random_state=11), blobs, "float64"),
    "published": (
        DPFedC(10, variant="published", epsilon=None, n_rounds=6, sites_per_round=10,
               random_state=12), positive, "float64",
    ),
    "published, noise": (
        DPFedC(10, variant="published", epsilon=20.0, gradient_bound=0.1, n_rounds=4, batch_size=5,
               extra_steps=2, random_state=13), positive, "float64",
    ),
    "k-means||": (
        KMeansParallel(5, epsilon=20.0, norm_bound=60.0, n_rounds=4, random_state=14),
        blobs, "float64",
    ),
    "fuzzy c-means": (FederatedFuzzyCMeans(5, n_rounds=5, random_state=15), blobs, "float64"),
    "k-FED": (KFed(5, random_state=16), blobs, "float64"),
    "coreset k-median": (CoresetKMedian(5, random_state=17), blobs, "float64"),
}  # fmt: skip
EXACT_RUNS = {
    "exact, dp-fedc": {"method": "dp-fedc"},
    "exact, sampled, sums and Gram": {
        "method": "dp-fedc",
        "settings": {"sampling_probability": 0.4, "update": "sums-and-gram", "subspace": 2,
                     "sites_per_round": 2, "n_rounds": 4},
    },
    "exact, dp-lloyd": {"method": "dp-lloyd", "settings": {"norm_bound": 20.0}},
}  # fmt: skip


class WrittenNoise(SecureNoise):
    """Integers from a seed in place of secure ones: only to compare runs."""

    def __init__(self, seed):
        object.__setattr__(self, "rng", np.random.default_rng(seed))

    def integers(self, shape, std):
        return np.rint(std * self.rng.standard_normal(shape)).astype(np.int64)


def simulated(name):
    estimator, data, dtype = RUNS[name]
    X, sites = data(np.dtype(dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UtilityWarning)
        model = estimator.fit(X, sites=sites)
    rounds = model.history_.rounds
    return {
        "centers": model.cluster_centers_.tolist(),
        "sizes": np.bincount(model.labels_, minlength=len(model.cluster_centers_)).tolist(),
        "epsilon": None if model.privacy_ is None else model.privacy_.epsilon,
        "stages": [f"{r.stage} {r.t} {r.n_sites} {r.n_records}" for r in rounds],
        "noise": [[*r.release.values()] for r in rounds],
        "exact": [[*r.diagnostics.values()] for r in rounds],
    }


def exact(name):
    """Run separate sites in memory, with coins from the seed where records are sampled."""
    changes = EXACT_RUNS[name]
    agreement = agreed(noise="secure", epsilon=200.0, spare_rounds=0, **changes)
    noises = {site: WrittenNoise(i) for i, site in enumerate(by_site())}
    uploads = {}

    class Sites(MemoryTransport):
        def _served(self, site, request):
            with self.ledger(site) as ledger:
                reply = node(agreement, site, ledger, noise=noises[site]).answer(request)
            answer = Answer.from_bytes(reply)
            digest = hashlib.sha256(np.asarray(answer.upload.values).tobytes()).hexdigest()
            uploads[f"{answer.stage} {answer.t} {site}"] = digest
            return reply

    with tempfile.TemporaryDirectory() as folder:
        transport = Sites(agreement, Path(folder))
        done = transport.coordinator().run()
    return {"centers": done.model.cluster_centers.tolist(), "uploads": uploads}


def run(name):
    return simulated(name) if name in RUNS else exact(name)


def close(found, written, tolerance):
    """Compare nested lists of numbers, null where there is none."""
    if written is None or isinstance(written, (str, int)):
        assert found == written
    elif isinstance(written, list):
        assert len(found) == len(written)
        for one, other in zip(found, written, strict=True):
            close(one, other, tolerance)
    else:
        np.testing.assert_allclose(found, written, rtol=tolerance, atol=tolerance * 1e-3)


@pytest.mark.parametrize("name", RUNS)
def test_a_simulated_run_gives_what_was_written_down(name):
    (content, least), found = written(), run(name)
    due, tolerance = content[name], max(TOLERANCES[RUNS[name][2]], least)
    scale = np.abs(due["centers"]).max()
    assert np.abs(np.subtract(found["centers"], due["centers"])).max() <= tolerance * scale
    for part in ("sizes", "stages"):
        assert found[part] == due[part]
    close([found["epsilon"], found["noise"]], [due["epsilon"], due["noise"]], tolerance)
    # Sums of squares near zero carry the rounding of much larger ones.
    close(found["exact"], due["exact"], 1e4 * tolerance)


@pytest.mark.parametrize("name", EXACT_RUNS)
def test_exact_sums_are_those_that_were_written_down(name, monkeypatch):
    monkeypatch.setattr("os.urandom", np.random.default_rng(0).bytes)
    (content, least), found = written(), run(name)
    assert least or found["uploads"] == content[name]["uploads"]
    np.testing.assert_allclose(
        found["centers"], content[name]["centers"], rtol=max(1e-12, least), atol=1e-12
    )


if __name__ == "__main__":
    import os

    results = {"environment": environment()}
    results |= {name: simulated(name) for name in RUNS}
    for name in EXACT_RUNS:
        before, os.urandom = os.urandom, np.random.default_rng(0).bytes
        results[name] = exact(name)
        os.urandom = before
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in results.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
