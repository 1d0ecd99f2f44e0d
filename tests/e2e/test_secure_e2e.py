"""Real processes whose uploads are added up in secret: one server, four sites, and kills."""

import re

import numpy as np
import pytest

from dpfedc.engine.run_record import RunRecord
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.ledger import Ledger
from processes import PATIENCE, Federation
from support.deployment import FEATURES
from support.site_services import write_records
from test_e2e import NAMES, agreement_of, folder_of, spent

pytestmark = pytest.mark.e2e

MIDDLES = np.array([[0, 0, 0], [9, 0, 1], [0, 9, 2]])


def plan_file(home, name, trust, *, rounds=3):
    path = home / f"{name}.toml"
    path.write_text(
        f'[run]\nname = "{name}"\ncoordinator = "test"\nclusters = 3\nfeatures = {[*FEATURES]}\n'
        f'[privacy]\nepsilon = 10\ndelta = 1e-5\nnorm_bound = 15.0\ntrust = "{trust}"\n'
        f"[rounds]\nrounds = {rounds}\ndeadline = {PATIENCE}\n"
    )
    return path


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Four sites; all but the first accept by themselves, and have pinned their peers."""
    home, rng = tmp_path_factory.mktemp("federation"), np.random.default_rng(1)
    made = Federation(home)
    for i, name in enumerate(NAMES):
        X = MIDDLES[rng.integers(3, size=400 + 100 * i)]
        made.add(name, write_records(home / f"{name}.csv", X + rng.normal(size=X.shape)))
    for name in NAMES[1:]:
        peers = [home / peer / "site.pub" for peer in NAMES if peer != name]
        made.call("site", "peers", home / name, *(word for p in peers for word in ("--pin", p)))
    made.start("server")
    made.start(NAMES[0])
    for name in NAMES[1:]:
        made.start(name, "--accept")
    yield made
    made.close()


def accept(federation, running, name):
    """Let the operator of the first site read the terms and accept; return what was shown."""
    running.says("Accepted by 3 of 4 sites")
    told = federation.call("site", "accept", federation.home / NAMES[0], name, "--yes")
    running.says("Accepted by 4 of 4 sites")
    return " ".join(told.split())


def assert_right(federation, agreement):
    """The clusters are those that were planted, and every ledger is whole."""
    folder = folder_of(federation, agreement)
    centers = ClusterModel.read(folder / "model.npz").cluster_centers
    assert np.linalg.norm(MIDDLES[:, None] - centers, axis=2).min(axis=1).max() < 1
    for name in NAMES:
        with Ledger.open(federation.home / name / "ledger.sqlite") as ledger:
            ledger.verify()
    return RunRecord.read(folder / "run.jsonl")


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_a_run_ends_with_the_clusters_whoever_is_trusted(federation, trust):
    running = federation.run("start", plan_file(federation.home, trust, trust))
    told = accept(federation, running, trust)
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    assert (agreement.noise, agreement.privacy.trust) == ("secure", trust)
    masked = trust == "secure-aggregation"
    for subject in ("Assumed in every round the uploads of at least 3", "Server it may", "Keys s0"):
        assert (subject in told) == masked
    assert ("the keys of s1, s2, s3 are pinned here neither" in told) == masked
    assert agreement.digest in told.replace(" ", "")
    assert ("added up in secret" in running.text) == masked
    record = assert_right(federation, agreement)
    assert len(record.rounds) == agreement.plan.n_rounds
    for name in NAMES:
        counts = spent(federation, name, agreement)
        assert all(charged == planned == answered for charged, planned, answered in counts.values())
    pins = federation.call("site", "peers", federation.home / NAMES[0])
    assert all((f" {name} " in pins) == masked for name in NAMES[1:])


@pytest.mark.parametrize("trust", ["local", "secure-aggregation"])
def test_a_run_counts_clusters_of_any_shape_and_says_how_good_they_are(federation, trust):
    name = f"counted {trust}"
    path = federation.home / f"{name}.toml"
    path.write_text(
        f'[run]\nname = "{name}"\ncoordinator = "test"\nclusters = "auto"\nk_range = [2, 6]\n'
        f'shape = "any"\nquality = true\nfeatures = {[*FEATURES]}\n'
        f'[privacy]\nepsilon = 20\ndelta = 1e-5\nnorm_bound = 15.0\ntrust = "{trust}"\n'
        f"[rounds]\ndeadline = {PATIENCE}\n"
    )
    running = federation.run("start", path)
    told = accept(federation, running, name)
    assert "2 to 6 clusters" in told
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    assert {"neighbours", "quality"} <= {release.stage for release in agreement.privacy.releases}
    record = assert_right(federation, agreement)
    assert len(record.rounds) == agreement.plan.n_rounds
    model = ClusterModel.read(folder_of(federation, agreement) / "model.npz")
    assert model.choice.n_clusters == len(model.cluster_centers) == 3
    assert len(model.prototypes) > 3
    sizes = [one.size.value for one in model.quality.clusters]
    assert abs(sum(sizes) - 2200) < 200  # records of all sites
    assert model.quality.silhouette.value > 0.5
    for site in NAMES:
        counts = spent(federation, site, agreement)
        assert all(charged == planned == answered for charged, planned, answered in counts.values())


def test_a_killed_site_is_out_of_its_round_and_then_back_in_the_run(federation):
    """Its keys are gone with it: of that round only, whichever of its steps it was in."""
    plan = plan_file(federation.home, "killed site", "secure-aggregation", rounds=8)
    running = federation.run("start", plan)
    accept(federation, running, "killed site")
    running.says("factorisation 2/8")
    federation.running["s2"].kill()
    federation.start("s2", "--accept").says("connected to")
    assert running.result() == 0, running.text
    agreement = agreement_of(federation)
    record = assert_right(federation, agreement)
    assert len(record.rounds) == agreement.plan.n_rounds
    for name in NAMES:
        counts = np.array([*spent(federation, name, agreement).values()])
        charged, planned, answered = counts.T
        assert (answered <= charged).all()
        assert (charged <= planned).all()
        assert planned.sum() - answered.sum() <= (name == "s2")
    rounds = re.findall(r"^Round .*: ([34]) of 4 sites answered", running.text, flags=re.MULTILINE)
    assert len(rounds) == agreement.plan.n_rounds
    assert rounds.count("3") <= 1


def test_a_killed_run_is_resumed_and_no_round_is_charged_twice(federation):
    plan = plan_file(federation.home, "killed run", "secure-aggregation", rounds=8)
    running = federation.run("start", plan)
    accept(federation, running, "killed run")
    running.says("factorisation 2/8")
    running.kill()
    resumed = federation.run("resume")
    assert resumed.result() == 0, resumed.text
    assert "factorisation 2/8" not in resumed.text
    agreement = agreement_of(federation)
    assert agreement.name == "killed run"
    record = assert_right(federation, agreement)
    assert len(record.rounds) == agreement.plan.n_rounds
    for name in NAMES:
        counts = spent(federation, name, agreement)
        assert all(charged == planned == answered for charged, planned, answered in counts.values())
