"""Three hospitals as real processes: their tables, one schema, persons, and labels at each site."""

import csv

import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from dpfedc import DPFedC
from dpfedc.model_file import ClusterModel
from dpfedc.tables.schema import Schema
from dpfedc.tables.trial_tables import read_encoded
from processes import PATIENCE, Federation
from support.hospitals import write_hospitals

pytestmark = pytest.mark.e2e

SEED = 300


def test_three_hospitals_find_the_groups_of_their_patients(tmp_path):
    files = write_hospitals(tmp_path / "tables", seed=SEED)
    schema = tmp_path / "tables" / "schema.toml"
    federation = Federation(tmp_path)
    for file in files:
        federation.add(file.stem, file, "--schema", schema)
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[run]\nname = "groups"\ncoordinator = "test"\nclusters = 4\n'
        'schema = "tables/schema.toml"\n'
        f"[privacy]\nepsilon = 2\ndelta = 1e-5\n[rounds]\ndeadline = {PATIENCE}\n"
    )
    federation.start("server")
    for file in files:
        federation.start(file.stem, "--accept")
    running = federation.run("start", plan)
    assert running.result() == 0, running.text
    (run,) = (tmp_path / "server" / "runs").iterdir()
    again = federation.run("resume")  # a site that was away would get the model so
    assert again.result() == 0, again.text
    labels = {}
    for file in files:
        output = tmp_path / f"{file.stem}-labels.csv"
        federation.call("site", "labels", tmp_path / file.stem, "--run", run.name, "-o", output)
        assert output.stat().st_mode & 0o077 == 0
        with output.open(newline="") as stream:
            labels |= {r["patient_id"]: r["cluster"] for r in csv.DictReader(stream)}
    federation.close()
    with (tmp_path / "tables" / "truth.csv").open(newline="") as stream:
        truth = {row["patient_id"]: row["group"] for row in csv.DictReader(stream)}
    assert labels.keys() == truth.keys()
    found = adjusted_rand_score([truth[p] for p in labels], list(labels.values()))
    records = read_encoded(files, Schema.read(schema))
    exact = DPFedC(4, epsilon=None, random_state=0).fit_records(records).model_.seen(records.X)
    pooled = KMeans(4, n_init=10, random_state=0).fit_predict(exact)
    reference = adjusted_rand_score([truth[p] for p in records.ids], pooled)
    print(f"\nARI {found:.3f}, k-means without privacy {reference:.3f}")
    assert found >= 0.8 * reference
    model = ClusterModel.read(run / "model.npz")
    assert model.about["privacy"]["unit"] == "person"
    page = federation.call("report", run)
    assert "report.html" in page
