"""Real processes with so many columns that clusters are directions, whose records are counted."""

import numpy as np
import pytest

from dpfedc.model_file import ClusterModel
from processes import PATIENCE, Federation
from test_e2e import NAMES, agreement_of, folder_of, spent

pytestmark = pytest.mark.e2e

M, K = 200, 4
COLUMNS = [f"c{i}" for i in range(M)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    home, rng = tmp_path_factory.mktemp("wide"), np.random.default_rng(1)
    made, middles = Federation(home), 12 * np.eye(K, M)
    for name in NAMES:
        X = middles[rng.integers(K, size=800)]
        path, header = home / f"{name}.csv", ",".join(COLUMNS)
        np.savetxt(path, X + rng.normal(size=X.shape), "%.6g", ",", header=header, comments="")
        made.add(name, path)
    for name in NAMES:  # who accepts by itself must know the others' keys
        peers = [home / peer / "site.pub" for peer in NAMES if peer != name]
        made.call("site", "peers", home / name, *(word for p in peers for word in ("--pin", p)))
    made.start("server")
    for name in NAMES:
        made.start(name, "--accept")
    yield made
    made.close()


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_a_run_that_counts_the_records_of_directions(federation, trust):
    path = federation.home / f"{trust}.toml"
    path.write_text(
        f'[run]\nname = "{trust}"\ncoordinator = "test"\nclusters = {K}\nfeatures = {COLUMNS}\n'
        f'[privacy]\nepsilon = 60\ndelta = 1e-5\nnorm_bound = 20.0\ntrust = "{trust}"\n'
        f"[rounds]\nrounds = 8\ndeadline = {PATIENCE}\n"
    )
    running = federation.run("start", path)
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    (search,) = (s for s in agreement.plan.stages if s.name == "factorisation")
    assert search.counted
    centers = ClusterModel.read(folder_of(federation, agreement) / "model.npz").cluster_centers
    assert sorted(np.argmax(centers, axis=1)) == list(range(K))
    for name in NAMES:
        counts = spent(federation, name, agreement)
        assert all(charged == planned == answered for charged, planned, answered in counts.values())
