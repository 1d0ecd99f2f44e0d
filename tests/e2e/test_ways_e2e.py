"""Real processes whose plans take ways of their own, by what their records are like.

With very many columns clusters are directions, whose records are counted. Where there is no gap
between clusters, the last round counts records by the cluster of the nearest prototype.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpfedc.model_file import ClusterModel
from processes import PATIENCE, Federation
from test_e2e import NAMES, agreement_of, folder_of, spent

pytestmark = pytest.mark.e2e

M, K = 200, 4
TRUSTS = ["local", "secure-aggregation"]


@contextmanager
def accepting_sites(home, records):
    """Yield a server with sites that accept every run, each with the records of its name."""
    made = Federation(home)
    for name, X in records.items():
        path, header = home / f"{name}.csv", ",".join(columns(X.shape[1]))
        np.savetxt(path, X, "%.6g", ",", header=header, comments="")
        made.add(name, path)
    for name in NAMES:  # who accepts by itself must know the others' keys
        peers = [home / peer / "site.pub" for peer in NAMES if peer != name]
        made.call("site", "peers", home / name, *(word for p in peers for word in ("--pin", p)))
    made.start("server")
    for name in NAMES:
        made.start(name, "--accept")
    yield made
    made.close()


def columns(n):
    return [f"c{i}" for i in range(n)]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    rng, middles = np.random.default_rng(1), 12 * np.eye(K, M)
    drawn = {name: middles[rng.integers(K, size=800)] for name in NAMES}
    records = {name: X + rng.normal(size=X.shape) for name, X in drawn.items()}
    with accepting_sites(tmp_path_factory.mktemp("wide"), records) as made:
        yield made


def squares():
    """Return digits in 16 squares, with columns of variance 1: k-means cuts through them."""
    X = load_digits().data.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    return (X - X.mean(axis=0)) / X.std(axis=0)


@pytest.fixture(scope="module")
def without_gaps(tmp_path_factory):
    X = squares()
    records = {name: X[i :: len(NAMES)] for i, name in enumerate(NAMES)}
    with accepting_sites(tmp_path_factory.mktemp("digits"), records) as made:
        yield made


def finished(federation, trust, n_clusters, n_columns, words):
    """Return the agreement and the model of a run, all of whose rounds were charged and sent."""
    path = federation.home / f"{trust}.toml"
    path.write_text(
        f'[run]\nname = "{trust}"\ncoordinator = "test"\nclusters = {n_clusters}\n'
        f"features = {columns(n_columns)}\n"
        f'[privacy]\ndelta = 1e-5\ntrust = "{trust}"\n{words}deadline = {PATIENCE}\n'
    )
    running = federation.run("start", path)
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    for name in NAMES:
        counts = spent(federation, name, agreement)
        assert all(charged == planned == answered for charged, planned, answered in counts.values())
    return agreement, ClusterModel.read(folder_of(federation, agreement) / "model.npz")


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_run_that_counts_the_records_of_directions(wide, trust):
    words = "epsilon = 60\nnorm_bound = 20.0\n[rounds]\nrounds = 8\n"
    agreement, model = finished(wide, trust, K, M, words)
    (search,) = (s for s in agreement.plan.stages if s.name == "factorisation")
    assert search.counted
    assert sorted(np.argmax(model.cluster_centers, axis=1)) == list(range(K))


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_run_that_counts_records_by_the_nearest_prototype(without_gaps, trust):
    """Of forty such runs in one process all come to prototypes."""
    words = "epsilon = 50\nnorm_bound = 8.0\n[rounds]\n"
    agreement, model = finished(without_gaps, trust, 12, 16, words)
    assert agreement.plan.stages[-1].n_places == len(model.prototypes) > 12
    assert model.by_prototype
    X = squares()
    sizes = np.bincount(model.labels(X), minlength=12)
    np.testing.assert_allclose(model.sizes, sizes, atol=5 * model.size_errors.max())
