"""A table with persons at separate sites: the records and the sums of a trial, bit by bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfedc.cli.site_setup import check
from dpfedc.clustering.stage import SiteBatch, contributed
from dpfedc.deployment.admission import require_schema, require_unit
from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.keys import public_key
from dpfedc.deployment.proposal import proposed
from dpfedc.deployment.site_folder import PERSONS, SiteFolder
from dpfedc.deployment.site_run import SiteRun
from dpfedc.deployment.site_service import site_node
from dpfedc.deployment.terms import terms
from dpfedc.errors import InvalidInput, NotFound
from dpfedc.kernels.column_view import seen
from dpfedc.privacy.exact_sums import Upload, exact_sum, unit_of
from dpfedc.privacy.gate import ReleaseEvent, received
from dpfedc.privacy.ledger import GaussianCap, Ledger
from dpfedc.privacy.noise import SecureNoise
from dpfedc.privacy.sums import kept
from dpfedc.randomness import Randomness
from dpfedc.tables.encode import encoded_table
from dpfedc.tables.persons import DeclaredPersons
from dpfedc.tables.schema import Schema
from dpfedc.tables.trial_tables import read_encoded
from support.deployment import KEY, SIZES, MemoryTransport, agreed
from support.hospitals import write_hospitals
from support.site_services import authority_in


class NoNoise(SecureNoise):
    """Exact sums as they are, for comparison."""

    def integers(self, shape, std):
        return np.zeros(shape, dtype=np.int64)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Return the three tables, and the schema's path."""
    folder = tmp_path_factory.mktemp("hospitals")
    return write_hospitals(folder, n_patients=240, seed=3), folder / "schema.toml"


@pytest.fixture
def sites(hospitals, tmp_path):
    """Return the folders of the three sites, as `site init` makes them."""
    files, path = hospitals
    schema, made = Schema.read(path), []
    for file in files:
        source = {"path": str(file)}
        persons = DeclaredPersons.of(
            SiteFolder(tmp_path, file.stem, "", 0, source).source.load(schema).ids
        )
        made.append(
            SiteFolder.create(
                tmp_path / file.stem, name=file.stem, server="localhost:1",
                authority=authority_in(tmp_path),
                data=source, records=len(persons.digests), cap=GaussianCap(99.0, 1e-3),
                holding=file.stem, schema=path, persons=persons,
            )
        )  # fmt: skip
    return made


def agreement_of(sites, **changes) -> Agreement:
    schema = changes.pop("schema", sites[0].schema)
    return proposed(**{
        "name": "study", "coordinator": "university", "receipt_key": public_key(KEY),
        "method": "dp-fedc", "settings": {"n_clusters": 4}, "schema": schema,
        "features": schema.features, "unit": schema.unit, "epsilon": 2.0, "delta": 1e-4,
        "sites": [Site(site.name, site.records) for site in sites], "noise": "secure", "seed": 7,
        "deadline": 5.0, "min_answers": 1, **changes,
    })  # fmt: skip


def test_integer_sums_are_those_of_one_process(hospitals, sites):
    agreement = agreement_of(sites)
    trial = read_encoded(hospitals[0], sites[0].schema)
    runs = []
    for site in sites:
        records = site.load(agreement)
        here = trial.sites == site.name
        np.testing.assert_array_equal(records.X, trial.X[here])
        np.testing.assert_array_equal(records.present, trial.present[here])
        ledger = Ledger.open(site.ledger)
        runs.append(
            SiteRun(agreement, agreement.digest, site.name, records.X, records.present, ledger,
                    noise=NoNoise())
        )  # fmt: skip
    randomness = Randomness(agreement.seed)
    state = dict(agreement.declared)
    for exchange in agreement.exchanges:
        stage = exchange.stage
        state = stage.start(state, agreement.public, randomness)
        for t in range(1, stage.n_rounds + 1):
            arrays = exchange.accepted(exchange.sent(state), agreement.fixed)
            bound = stage.sensitivity(arrays, t)
            uploads = [run._upload(exchange, arrays, t) for run in runs]
            apart = np.sum([upload.values for upload in uploads], axis=0, dtype=np.uint64)
            together = in_one_process(stage, arrays, t, trial, runs, bound)
            np.testing.assert_array_equal(apart.view(np.int64), together)
            total = together * unit_of(bound)
            event = ReleaseEvent(stage.name, t, 3, sum(site.records for site in sites))
            state = dict(stage.combine(state, received([Upload(total)], event), t))
    for run in runs:
        run.ledger.close()


def in_one_process(stage, state, t, trial, runs, bound):
    """Return the exact sum over the trial's records, which were never at a site."""
    total = 0
    for number, run in enumerate(runs):
        here = trial.sites == run.site
        X = np.where(trial.present[here][:, None], trial.X[here], 0.0)
        batch = SiteBatch(
            seen(X, state), np.array([0, len(X)]), np.array([number]), trial.present[here]
        )
        batch.memory = stage.prepare(batch, state, Randomness(0))
        contribution, _, sample = contributed(stage, batch, state, t, run._gate(), Randomness(0))
        keep = kept(batch, sample, contribution.like)
        total = total + exact_sum(contribution, keep, bound)
    return total


def test_slots_stay_those_that_were_declared(hospitals, sites):
    agreement, site = agreement_of(sites), sites[0]
    before = site.load(agreement)
    table = hospitals[0][0].read_text(encoding="utf-8").splitlines()
    gone = table[1].split(",")[0]
    kept_rows = [line for line in table if not line.startswith(f"{gone},")]
    new = [*kept_rows, "999999,40,F,22,120,70,5.5,no,Z", ",,,,,,,,", '"', ""]
    other = site.path / "later.csv"
    other.write_text("\n".join(new), encoding="utf-8")
    after = replace(site, data={"path": str(other)}).load(agreement)
    rows = encoded_table(site.source.opened(), site.schema)
    slot = rows.ids.index(gone)
    rest = np.arange(site.records) != slot
    np.testing.assert_array_equal(before.X[rest], after.X[rest])
    assert not after.present[slot]
    assert after.present[rest].all()


def test_no_id_is_in_the_sites_folder(hospitals, sites):
    ids = encoded_table(sites[0].source.opened(), sites[0].schema).ids
    assert (sites[0].path / PERSONS).stat().st_mode & 0o077 == 0
    for file in sites[0].path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not any(text.encode() in content for text in ids[:50])


def test_terms_speak_of_columns_and_persons(sites):
    text = "\n".join(terms(agreement_of(sites)))
    assert "age (0 to 110), sex (F, M), bmi (10 to 70)" in text
    assert "; patient_id, to bring a person's rows together; of your table" in text
    assert "read once, and kept in a file of this site until the run is over" in text
    assert "all of their rows at once" in text


def test_another_schema_is_refused_by_its_entry(sites):
    own = sites[0].schema
    column = replace(own.columns[0], range=(0.0, 120.0))
    other = replace(own, columns=(column, *own.columns[1:]))
    require_schema(agreement_of(sites), own)
    with pytest.raises(InvalidInput, match="column 'age' has range"):
        require_schema(agreement_of(sites, schema=other), own)
    with pytest.raises(InvalidInput, match="must have no schema, as the site has none"):
        require_schema(agreement_of(sites), None)


def test_an_agreement_holds_its_schema_and_nothing_else_about_tables(sites):
    agreement = agreement_of(sites)
    assert Agreement.from_json(agreement.to_json()) == agreement
    with pytest.raises(InvalidInput, match="features must be those of the schema"):
        replace(agreement, features=("age",))
    with pytest.raises(InvalidInput, match="must be for the schema's persons"):
        agreement_of(sites, unit="record")


def test_persons_must_be_declared_where_they_are_named_and_only_there(sites):
    site, agreement = sites[0], agreement_of(sites)
    (site.path / PERSONS).unlink()
    with pytest.raises(InvalidInput, match="must be declared if its table has any"):
        site.load(agreement)
    site.declaring(site.records, DeclaredPersons.of("ab"))
    (site.path / "schema.toml").write_text(
        (site.path / "schema.toml").read_text().replace("person = ", "# person = ")
    )
    with pytest.raises(InvalidInput, match="and only then"):
        site.load(agreement)


def test_a_run_for_persons_is_refused_where_rows_are_the_slots(sites):
    """A ledger whose unit was changed does not make persons of rows."""
    site = sites[0]
    with Ledger.open(site.ledger) as ledger:
        require_unit(agreement_of(sites), site.unit, ledger)
        with pytest.raises(InvalidInput, match="as the site's slots are, got person"):
            require_unit(agreement_of(sites), "record", ledger)


def test_a_workbook_is_no_table_of_a_site(sites):
    """One cell of it can make it unreadable as a whole, which the server would see."""
    with pytest.raises(InvalidInput, match="takes no workbooks"):
        _ = replace(sites[0], data={"path": "t.xlsx"}).source


def test_another_schema_is_declared_with_its_slots(sites, tmp_path, capsys):
    site, other = sites[0], tmp_path / "other.toml"
    text = (site.path / "schema.toml").read_text().replace("person = ", "# person = ")
    other.write_text(text)
    check(site.path, declare=True, schema=other)
    again = SiteFolder.open(site.path)
    assert (again.unit, again.persons) == ("record", None)
    assert again.records > site.records
    said = " ".join(capsys.readouterr().out.split())
    assert "Its ledger is for unit person, its slots are records now" in said
    with pytest.raises(InvalidInput, match="needs --declare"):
        check(site.path, declare=False, schema=other)


def test_a_run_goes_on_with_the_persons_that_it_was_frozen_with(sites):
    site, agreement = sites[0], agreement_of(sites)
    site.keep(agreement)
    site.accept(agreement.digest)
    with Ledger.open(site.ledger) as ledger:
        before = site_node(site, agreement.digest, ledger)
        ids = encoded_table(site.source.opened(), site.schema).ids
        again = site.declaring(len(ids), DeclaredPersons.of(reversed(ids)))
        after = site_node(again, agreement.digest, ledger)
    np.testing.assert_array_equal(before.X, after.X)
    np.testing.assert_array_equal(before.present, after.present)
    assert not np.array_equal(before.X, again.load(agreement).X)


def test_ranges_that_were_not_found_are_named_by_the_server(tmp_path):
    """What sites release ends the run, with the columns' names and nothing of their cells."""
    schema = Schema.of({"column": [
        {"name": "age", "kind": "number", "range": [0, 100]},
        {"name": "pulse", "kind": "number", "range": "auto"},
        {"name": "lab", "kind": "number", "range": "auto"},
    ]})  # fmt: skip
    agreement = agreed(
        "dp-fedc", settings={"n_rounds": "auto"}, schema=schema, features=schema.features
    )
    assert not agreement.plan.hopeless(agreement.facts)
    rng = np.random.default_rng(0)
    X = {
        name: np.column_stack(
            [rng.uniform(-1, 1, n), rng.normal(70, 1, n), 2.0 ** rng.uniform(-9, 29, n)]
        )
        for name, n in SIZES.items()
    }
    with pytest.raises(NotFound) as lost:
        MemoryTransport(agreement, tmp_path, X=X).coordinator().run()
    assert str(lost.value).startswith("lab: a range was not found")
    assert lost.value.features == (2,)
    assert not (tmp_path / "run" / "model.npz").exists()
