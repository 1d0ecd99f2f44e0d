"""What the tests share: one Hypothesis profile, small federations, and the command line."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from sklearn.datasets import make_blobs

from support.command_line import HEAD, ROLES, outcome, patients, write_csv

settings.register_profile(
    "deterministic",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # of a busy machine
    derandomize=True,
    max_examples=60,
)
settings.load_profile("deterministic")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Keep what commands remember, in other processes too, away from the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(20240917)


@pytest.fixture
def blobs():
    """Three well separated blobs in two dimensions, dealt to ten sites: X, y, sites."""
    X, y = make_blobs(
        n_samples=150, centers=[[0, 0], [9, 1], [2, 8]], cluster_std=1.0, random_state=0
    )
    return X, y, np.arange(150) % 10


@pytest.fixture
def ragged(rng):
    """Records of twelve sites of 1 to 40 records around three centres: X, offsets."""
    sizes = np.array([1, 2, 3, 40, 5, 1, 17, 8, 9, 32, 33, 1])
    centers = 4 * rng.standard_normal((3, 5))
    X = centers[rng.integers(3, size=sizes.sum())] + rng.standard_normal((sizes.sum(), 5))
    return X, np.concatenate([[0], np.cumsum(sizes)])


@pytest.fixture
def dpfedc(capsys, monkeypatch):
    """Return a function that runs the command line and returns (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *words: outcome(capsys, words)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """600 patients in three groups at several hospitals, as a CSV file."""
    return write_csv(tmp_path_factory.mktemp("privacy") / "patients.csv", HEAD, patients(600))


@pytest.fixture
def fitted(dpfedc, table, tmp_path):
    """Return a function that fits the table and returns what was printed, and the folder."""

    def fit(*words, name="r"):
        folder = tmp_path / name
        words = ("--clusters", 3, *ROLES, "--no-diagnostics", "--output", folder, *words)
        code, out, err = dpfedc("fit", table, *words)
        assert (code, err) == (0, "")
        return " ".join(out.split()), folder

    return fit
