"""The code in CONTRIBUTING.md runs, and does what the page says."""

import re

import numpy as np
import pytest

from dpfedc.clustering import registry
from dpfedc.clustering.stage import SiteBatch
from dpfedc.errors import DataUnavailable
from dpfedc.kernels.clipping import clip_weights
from dpfedc.privacy.sampling import RoundSample
from dpfedc.tables import formats
from support.code_names import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = list(re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return all names that the page's code has made, run from the first line to the last."""
    names = {"__name__": "contributing"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("contributing"))
        patch.setattr(registry, "_PLACES", dict(registry._PLACES))
        patch.setattr(formats, "READERS", dict(formats.READERS))
        for block in BLOCKS:
            above = "\n" * TEXT[: block.start(1)].count(
                "\n"
            )  # so that errors have the page's lines
            exec(compile(above + block[1], "CONTRIBUTING.md", "exec"), names)
        yield names


def near_truth(centers):
    """Return whether the centres' first features are about those of the records: 0 and 9."""
    return np.abs(np.sort(np.asarray(centers)[:, 0]) - [0, 9]).max() < 1.5


def test_the_method_runs_simulated_and_deployed(page):
    assert near_truth(page["fitted"].cluster_centers_)
    assert near_truth(page["deployed"].model.cluster_centers)
    assert page["fitted"].privacy_.epsilon <= 50.0


def test_the_plan_is_in_the_stages_words(page):
    agreement = page["agreement"]
    words = " ".join(page["plan_in_words"](agreement.plan, agreement.facts, agreement.target))
    assert page["Sides"].purpose in words


def test_no_record_moves_the_stages_sum_by_more_than_it_says(page):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)) * 10 ** rng.uniform(-3, 3, size=(40, 1))
    stage = page["Sides"](1)
    state = {"origin": np.ones(3), "bound": np.asarray(2.0), "centers": rng.normal(size=(2, 3))}
    batch = SiteBatch(X, np.array([0, 40]), np.array([0]))
    made = stage.local(batch, state, 1, RoundSample(1.0, 1), None)
    most = stage.sensitivity(state, 1)
    weights = clip_weights(made.norms, most)
    moved = [np.linalg.norm(made.total(weights * (np.arange(40) == j))) for j in range(40)]
    assert max(moved) <= most * (1 + 1e-12)
    np.testing.assert_allclose(weights, 1)  # the sensitivity is no shorter than records are
    assert made.total(weights).shape == stage.upload({}, 3).shape


def test_the_reader_serves_trials_and_sites(page):
    records, table = page["at_a_site"], page["read_tables"]
    assert records.present.tolist() == [True, False]
    assert records.X.tolist() == [[61.0, 70.5], [0.0, 0.0]]
    whole = page["Path"]("whole.jsonl")
    whole.write_text('{"ward": "a", "age": 61}\n{"ward": "b", "age": 58}\n', encoding="utf-8")
    found = table(whole, site_column="ward")
    assert (found.X.tolist(), found.sites.tolist()) == ([[61.0], [58.0]], ["a", "b"])
    whole.write_text('{"ward": "a"\n', encoding="utf-8")
    with pytest.raises(DataUnavailable, match=r"whole\.jsonl must be a readable file, got:"):
        table(whole)
