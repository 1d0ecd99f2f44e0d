"""Experiments: the cells of a grid, runs that resume, and the page about them."""

import csv
import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from dpfedc.engine.run_record import RoundRecord, RunRecord
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.research.experiments import runner
from dpfedc.research.experiments.compared_methods import METHODS, PER_ROUND, estimator
from dpfedc.research.experiments.experiment_page import write_experiment_report
from dpfedc.research.experiments.experiment_spec import (
    experiment_names,
    named_experiment,
    parsed_experiment,
    read_experiment,
)
from dpfedc.research.experiments.fitted_slopes import falls, log_log_slope, mean_stationarity
from dpfedc.research.experiments.result_tables import (
    ASSUMED,
    NO_NOISE,
    PAPER_TABLE,
    PROVED,
    WITH_LABELS,
    privacy_status,
)
from dpfedc.research.experiments.results import (
    RESULT_COLUMNS,
    read_failures,
    read_record,
    read_results,
    read_rounds,
)
from dpfedc.research.experiments.runner import run_cell, run_experiment
from dpfedc.research.published.published_planner import AS_PUBLISHED
from dpfedc.research.spread import mean_and_error
from support.tiny_experiment import TINY, tiny


def rows(path, without=("seconds",)):
    with path.open(newline="") as stream:
        return [{k: v for k, v in r.items() if k not in without} for r in csv.DictReader(stream)]


# --- what a file says --------------------------------------------------------------------------


def test_cells_are_the_product_of_the_axes():
    cells = tiny().cells
    ours = [c for c in cells if c.method == "dp-fedc"]
    assert len(ours) == 2 * 2 * 2  # seeds, partitions, epsilons
    assert {(c.seed, c.partition, c.epsilon) for c in ours} == {
        (s, p, e) for s in (0, 1) for p in ("iid", "non-iid") for e in (None, 8.0)
    }
    assert {c.trust for c in ours if c.epsilon is None} == {""}
    assert {c.trust for c in ours if c.epsilon} == {"local"}
    pooled = [c for c in cells if c.method == "pooled-k-means"]
    assert [(c.partition, c.epsilon, c.sites_per_round) for c in pooled] == [
        ("iid", None, None)
    ] * 2
    assert [c.seed for c in cells] == sorted(c.seed for c in cells)
    assert len({c.id for c in cells}) == len(cells)


def test_without_noise_trust_models_are_one_cell():
    both = tiny(
        'variants = ["normalized"]',
        'trusts = ["local", "trusted-server"]\nvariants = ["normalized"]',
    )
    exact = [c for c in both.cells if c.method == "dp-fedc" and c.epsilon is None]
    noisy = [c for c in both.cells if c.epsilon is not None]
    assert (len(exact), len(noisy)) == (4, 8)


def test_quick_cells_replace_axes_and_only_given_settings():
    cells = tiny().quick_cells
    assert {c.seed for c in cells} == {7}
    assert {c.settings for c in cells if c.method == "dp-fedc"} == {(("n_rounds", 2),)}


def test_noisy_settings_go_to_noisy_cells_of_their_data():
    private = "noisy_settings = { momentum = 0.5 }\n"
    private += "noisy_settings_of = { digits = { step = 2.0 }, mnist = { step = 9.0 } }"
    cells = tiny("settings = { n_rounds = 3 }", f"settings = {{ n_rounds = 3 }}\n{private}").cells
    ours = [c for c in cells if c.method == "dp-fedc"]
    assert {c.settings for c in ours if c.epsilon is None} == {(("n_rounds", 3),)}
    expected = (("momentum", 0.5), ("n_rounds", 3), ("step", 2.0))
    assert {c.settings for c in ours if c.epsilon} == {expected}


def test_a_method_may_have_axes_units_and_stamps_of_its_own():
    mine = '''
[[methods]]
name = "dp-fedc"
called = "read-so"
variants = ["published"]
seeds = [1, 8]
partitions = ["iid"]
units = { digits = 16.0 }
track = "nothing"
settings = { n_rounds = 3, batches = "cycling" }
noisy_settings = { gradient_bound = 2.0 }
noisy_stamps = ["mine"]
[[methods]]
like = "read-so"
called = "read-otherwise"
epsilons = [4.0]
settings = { batches = "capped" }
noisy_settings = { gradient_bound = 3.0 }
[[methods]]
name = "pooled-k-means"'''
    found = tiny('\n[[methods]]\nname = "pooled-k-means"', mine)
    so = [c for c in found.cells if c.variant == "read-so"]
    otherwise = [c for c in found.cells if c.variant == "read-otherwise"]
    assert [(c.seed, c.epsilon) for c in so] == [(1, None), (1, 8.0), (8, None), (8, 8.0)]
    assert [(c.seed, c.epsilon) for c in otherwise] == [(1, 4.0), (8, 4.0)]
    assert {(c.data.unit, c.track, c.partition) for c in so + otherwise} == {
        (16.0, "nothing", "iid")
    }
    assert [c.stamps for c in so] == [(), ("mine",)] * 2
    common = {"n_rounds": 3, "variant": "published"}
    assert dict(so[0].settings) == {**common, "batches": "cycling"}
    assert dict(so[1].settings) == {**common, "batches": "cycling", "gradient_bound": 2.0}
    assert dict(otherwise[0].settings) == {**common, "batches": "capped", "gradient_bound": 3.0}
    # The others keep the grid's axes, and quick runs have those of the quick grid.
    assert {c.seed for c in found.cells if c.variant == "normalized"} == {0, 1}
    assert {c.seed for c in found.quick_cells} == {7}
    record, _ = run_cell(so[0])
    assert AS_PUBLISHED in record.stamps
    record, _ = run_cell(otherwise[0])
    assert "mine" in record.stamps


def test_units_scale_the_records_and_with_them_the_cost():
    cell = next(c for c in tiny().cells if c.method == "pooled-k-means")
    scaled = replace(cell, data=replace(cell.data, unit=2.0))
    first, second = (run_cell(c)[1] for c in (cell, scaled))
    assert second["accuracy"] == first["accuracy"]
    assert second["cost"] == pytest.approx(4 * first["cost"], rel=1e-5)


def test_an_id_changes_with_every_setting():
    before = {c.id for c in tiny().cells if c.method == "dp-fedc"}
    for old, new in (("n_rounds = 3", "n_rounds = 4"), ("n_sites = 6", "n_sites = 5")):
        assert not before & {c.id for c in tiny(old, new).cells}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "tiny"', "name = ", "must be TOML"),
        ('title = "A tiny experiment"', "", "must have title"),
        ('name = "tiny"', 'name = "../tiny"', "name must be letters, digits"),
        ('shown = "rounds"', 'shown = "cake"', "shown must be one of table, rounds"),
        ("seeds = [0, 1]", "seeds = []", "seeds must be a list with at least one entry"),
        ("seeds = [0, 1]", "seeds = [-1]", "seeds must be >= 0, got -1"),
        ("seeds = [0, 1]", "seeds = [0]\nsedes = [1]", r"\[grid\] may have .*; got 'sedes'"),
        ('["none", 8.0]', '["never"]', "numbers > 0 or \"none\", got 'never'"),
        ('["none", 8.0]', "[0.0]", "epsilons must be > 0, got 0.0"),
        ('partitions = ["iid", "non-iid"]', 'partitions = ["odd"]', "partitions must be one of"),
        ("sites_per_round = [3]", "sites_per_round = [7]", "from 1 to 6, got 7"),
        ("sites_per_round = [3]", 'sites_per_round = ["most"]', "whole numbers or \"all\""),
        ('data = ["digits"]', 'data = ["mnist"]', "grid.data must be one of digits, got 'mnist'"),
        ("n_clusters = 4", "n_clusters = 1", "n_clusters must be >= 2, got 1"),
        ('name = "dp-fedc"', 'name = "dp-magic"', "method must be one of dp-fedc"),
        ('variants = ["normalized"]', 'variants = [""]', "one of normalized, published, got ''"),
        ('name = "pooled-k-means"', 'name = "k-fed"\nvariants = ["published"]', "of k-fed"),
        ('variants = ["normalized"]', 'variants = ["normalized"]\ntrusts = ["all"]', "trusts must"),
        ("settings = { n_rounds = 3 }", "settings = 3", "settings of dp-fedc must be a table"),
        ("settings = { n_rounds = 3 }", "called = 'a b'", "called must be letters, digits"),
        ("settings = { n_rounds = 3 }", "like = 'nobody'", "like must be one of , got 'nobody'"),
        ("settings = { n_rounds = 3 }", "units = { digits = 0 }", "units must be > 0, got 0"),
        ("settings = { n_rounds = 3 }", "track = 'all'", "track must be one of nothing"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_are_named(old, new, message):
    with pytest.raises(InvalidInput, match=message) as error:
        tiny(old, new)
    assert str(error.value).startswith("tiny.toml")


def test_a_file_of_the_users_own_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TINY)
    assert read_experiment(path) == tiny()
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match="UTF-8"):
        read_experiment(path)


def test_the_package_has_the_papers_experiments():
    papers = ["convergence", "fig-3", "fig-4", "frontier", "reproduction", "table-1"]
    assert experiment_names() == papers
    found = {name: named_experiment(name) for name in experiment_names()}
    for name, experiment in found.items():
        assert experiment.name == name
        assert {c.data.name for c in experiment.quick_cells} == {"digits"}
        if name == "reproduction":
            continue
        assert {c.data.name for c in experiment.cells} == {"mnist", "tcga-mirna"}
        seeds = 3 if name in ("frontier", "convergence") else 5
        fresh = [c for c in experiment.cells if c.variant.startswith("closest-reading")]
        others = [c for c in experiment.cells if c not in fresh]
        assert {c.seed for c in others} == set(range(seeds))
        assert {c.seed for c in fresh} == (set(range(5, 20)) if fresh else set())
    assert {c.epsilon for c in found["fig-3"].cells} == {None, 20.0, 2.0}
    assert {c.sites_per_round for c in found["fig-4"].cells} == {10, 30, 100}
    assert {c.method for c in found["table-1"].cells} == set(METHODS)
    assert min(c.epsilon for c in found["frontier"].cells if c.epsilon) == 0.25
    with pytest.raises(InvalidInput, match="experiment must be one of convergence"):
        named_experiment("fig-9")


def test_every_method_can_be_made_with_its_table_1_settings():
    for cell in named_experiment("table-1").cells:
        if cell.seed == 0:
            made = estimator(cell.method, {"n_clusters": 3}, dict(cell.settings), cell.epsilon)
            assert made.get_params()["n_clusters"] == 3
            assert made.get_params().get("epsilon") == cell.epsilon


def test_settings_that_a_method_does_not_know_are_refused():
    with pytest.raises(InvalidInput, match="k-fed has no setting 'n_rounds'"):
        estimator("k-fed", {}, {"n_rounds": 3}, None)
    with pytest.raises(InvalidInput, match="pooled-k-means adds no noise"):
        estimator("pooled-k-means", {}, {}, 1.0)


# --- running -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    summary = run_experiment(tiny(), folder, command="a command")
    assert (summary.n_cells, summary.n_finished, summary.n_failed) == (10, 10, 0)
    return folder


def test_results_have_the_promised_columns_and_values(done):
    head = (done / "results.csv").read_text().splitlines()[0]
    assert head == ",".join(RESULT_COLUMNS)
    assert head.startswith("method,data,partition,epsilon,trust,variant,sites_per_round,seed,acc")
    cells = {c.id: c for c in tiny().cells}
    results = read_results(done)
    assert [r.cell for r in results] == list(cells)
    for r in results:
        cell = cells[r.cell]
        assert (r.method, r.epsilon, r.trust, r.seed) == (
            cell.method, cell.epsilon, cell.trust, cell.seed,
        )  # fmt: skip
        assert 0 < r.accuracy <= 1
        assert r.cost > 0
        record = read_record(done, r.cell)
        assert record.results["scores"]["accuracy"] == pytest.approx(r.accuracy, rel=1e-5)
    first = results[0]
    rounds = [row for row in read_rounds(done) if row.cell == first.cell]
    assert len([row for row in rounds if row.objective is not None]) == 3
    assert first.objective == [r.objective for r in rounds if r.objective is not None][-1]
    assert all(0 < row.accuracy <= 1 for row in rounds if row.accuracy is not None)


def test_an_interrupted_run_resumes_and_gives_the_same(done, tmp_path, monkeypatch):
    def interrupt(progress):
        if progress.n_done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny(), tmp_path, on_cell=interrupt)
    assert len(read_results(tmp_path)) == 4
    # A crash may cut the last line, and may leave rounds of a cell that has no result.
    with (tmp_path / "results.csv").open("a") as stream:
        stream.write("dp-fedc,digits,iid,8,loc")
    with (tmp_path / "rounds.csv").open("a") as stream:
        stream.write("dp-fedc,digits,iid,,,normalized,3,0,factorisation,1,2,0.5,unfinished\n")
    ran, real = [], runner.run_cell
    monkeypatch.setattr(runner, "run_cell", lambda c, track: ran.append(c.id) or real(c, track))
    summary = run_experiment(tiny(), tmp_path)
    assert (summary.n_found, summary.n_finished) == (4, 6)
    assert ran == [c.id for c in tiny().cells[4:]]
    for name in ("results.csv", "rounds.csv"):
        assert rows(tmp_path / name) == rows(done / name)
    assert run_experiment(tiny(), tmp_path).n_finished == 0
    assert len(ran) == 6


def test_results_do_not_depend_on_jobs(done, tmp_path):
    run_experiment(tiny(), tmp_path, jobs=2)
    assert rows(tmp_path / "results.csv") == rows(done / "results.csv")


def test_a_failing_cell_is_recorded_and_tried_again(tmp_path, monkeypatch):
    real = runner.run_cell

    def fails(cell, track):
        if cell.partition == "non-iid":
            raise InvalidInput("no, \n not today")
        return real(cell, track)

    monkeypatch.setattr(runner, "run_cell", fails)
    errors = []
    summary = run_experiment(tiny(), tmp_path, on_cell=lambda p: errors.append(p.error))
    assert (summary.n_finished, summary.n_failed) == (6, 4)
    assert {f["error"] for f in read_failures(tmp_path)} == {"InvalidInput: no, not today"}
    assert sum(map(bool, errors)) == 4
    page = write_experiment_report(tmp_path).read_text()
    assert "4 of 10 cells have no result. 4 failed: dp-fedc on digits: InvalidInput" in page
    monkeypatch.setattr(runner, "run_cell", real)
    assert run_experiment(tiny(), tmp_path).n_finished == 4
    assert read_failures(tmp_path) == []


def test_data_that_are_not_there_are_skipped_with_the_reason(tmp_path, monkeypatch):
    def missing():
        raise DataUnavailable("put mnist somewhere")

    monkeypatch.setitem(runner.LOADERS, "mnist", missing)
    text = 'data = ["mnist", "digits"]'
    more = "[data.mnist]\nn_clusters = 4\nn_sites = 6\nnon_iid = 'two-labels'\n[data.digits]"
    both = TINY.replace('data = ["digits"]', text, 1).replace("[data.digits]", more, 1)
    summary = run_experiment(parsed_experiment(both, "both"), tmp_path, quick=True)
    assert summary.skipped == {"mnist": "put mnist somewhere"}
    assert (summary.n_cells, summary.n_finished, summary.n_failed) == (10, 5, 0)
    assert {r.data for r in read_results(tmp_path)} == {"digits"}


def test_a_folder_of_something_else_is_refused(done, tmp_path):
    with pytest.raises(InvalidInput, match="quick=True, got one with quick=False"):
        run_experiment(tiny(), done, quick=True)
    with pytest.raises(InvalidInput, match="got one with name=tiny"):
        run_experiment(tiny('name = "tiny"', 'name = "other"'), done)
    (tmp_path / "results.csv").write_text("mine\n")
    with pytest.raises(InvalidInput, match="got other results there"):
        run_experiment(tiny(), tmp_path)
    with pytest.raises(InvalidInput, match="must be a folder, got the file"):
        run_experiment(tiny(), tmp_path / "results.csv")


# --- what is made of the results ---------------------------------------------------------------


class Text(HTMLParser):
    """Collect what a reader sees, and where pictures are."""

    def __init__(self, page):
        super().__init__()
        self.words, self.pictures = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.pictures.append(dict(attrs)["src"])

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_has_numbers_claims_figures_and_how_it_was_made(done):
    page = write_experiment_report(done)
    seen = Text(page.read_text(encoding="utf-8"))
    text = " ".join(" ".join(seen.words).split())
    for words in ("A tiny experiment", "a command", "seeds 0, 1", "proved", "simulated noise"):
        assert words in text
    assert "larger epsilon: no lower accuracy" in text
    assert "iid no worse than non-iid" in text
    accuracies = [r.accuracy for r in read_results(done) if r.method == "pooled-k-means"]
    mean, error = mean_and_error(accuracies)
    assert f"{mean:.3f} ± {error:.3f}" in text
    assert seen.pictures == ["figures/tiny-digits-normalized.png"]
    for name in seen.pictures:
        assert (done / name).read_bytes().startswith(b"\x89PNG")
        assert (done / name).with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_table_and_frontier_and_convergence_pages(tmp_path):
    varied = "seeds = [0, 1]\nsettings = [{ n_rounds = 2 }, { n_rounds = 8 }]"
    assert len(tiny("seeds = [0, 1]", varied).cells) == 20
    for name, old, new in (
        ("table", 'shown = "rounds"', 'shown = "table"'),
        ("frontier", 'shown = "rounds"', 'shown = "frontier"'),
    ):
        run_experiment(tiny(old, new), tmp_path / name, quick=True)
    text = (
        TINY.replace("seeds = [0, 1]", varied)
        .replace('["none", 8.0]', '["none"]')
        .replace('"normalized"', '"published"')
        .replace('shown = "rounds"', 'shown = "convergence"')
        .replace("settings = { n_rounds = 3 }\n", "")
        .split('[[methods]]\nname = "pooled')[0]
    )
    run_experiment(parsed_experiment(text, "falls"), tmp_path / "convergence")
    page = Text(write_experiment_report(tmp_path).read_text(encoding="utf-8"))
    text = " ".join(page.words)
    assert "Accuracy in per cent" in text
    assert "pooled k-means" in text
    assert "zeta" in text
    assert sorted(page.pictures) == [
        "figures/tiny-convergence.png", "figures/tiny-quick-digits-frontier.png",
    ]  # fmt: skip
    records = [
        read_record(tmp_path / "convergence", r.cell)
        for r in read_results(tmp_path / "convergence")
    ]
    iid, non_iid = falls(records)
    assert (iid.partition, non_iid.partition) == ("iid", "non-iid")
    assert iid.n_rounds == (2, 8)
    assert len(iid.values) == 2
    assert iid.slope < 0
    # Sites with two digits each differ more than sites dealt at random.
    assert non_iid.heterogeneity > iid.heterogeneity


def test_the_papers_numbers_are_those_of_its_table():
    flat = [v for row in PAPER_TABLE.values() for v in row.values()]
    assert len(flat) == 20
    assert PAPER_TABLE["dp-fedc"]["mnist", None] == 50.5
    assert PAPER_TABLE["dp-fedc"]["mnist", 20.0] == 43.1
    assert PAPER_TABLE["fuzzy-c-means"]["tcga-mirna", 20.0] == 66.9
    assert PAPER_TABLE["coreset-k-median"]["tcga-mirna", None] == 38.7
    assert sum(flat) == pytest.approx(993.3)
    assert set(PAPER_TABLE) == {name for name, entry in METHODS.items() if entry.paper_name}


@pytest.mark.parametrize(
    ("epsilon", "promise", "stamps", "expected"),
    [
        (None, None, (), NO_NOISE),
        (1.0, {"epsilon": 1.0}, (), PROVED),
        (1.0, None, (AS_PUBLISHED, "x"), AS_PUBLISHED),
        (1.0, None, ("x",), ASSUMED),
        (1.0, None, (AS_PUBLISHED, WITH_LABELS), f"{AS_PUBLISHED}; {WITH_LABELS}"),
    ],
)
def test_privacy_status(epsilon, promise, stamps, expected):
    record = RunRecord("m", "0", {"epsilon": epsilon}, (), stamps, {"privacy": promise})
    assert privacy_status(record) == expected


def test_each_method_of_table_1_says_how_far_its_noise_is_proved():
    proved = ("dp-fedc", "sums-and-gram", "federated-k-means", "dp-lloyd")
    expected = dict.fromkeys(proved, PROVED)
    for cell in named_experiment("table-1").quick_cells:
        if cell.seed == 0 and cell.epsilon is not None:
            wanted = expected.get(cell.method, ASSUMED)
            wanted = AS_PUBLISHED if cell.variant == "published" else wanted
            wanted = f"{AS_PUBLISHED}; {WITH_LABELS}" if cell.stamps else wanted
            status = privacy_status(run_cell_quietly(cell))
            if cell.variant == PER_ROUND or ("epsilon_per_round", True) in cell.settings:
                assert status.startswith(f"{wanted}: " if wanted == PROVED else wanted)
                assert ("in all" in status) or ("per round" in status)
            else:
                assert status == wanted, cell.method


def run_cell_quietly(cell):
    _, record, _, error = runner._attempt(cell, "nothing")
    assert error == ""
    return record


def test_slope_and_stationarity():
    assert log_log_slope([25, 100, 400], [3.0, 1.5, 0.75]) == pytest.approx(-0.5)
    assert math.isnan(log_log_slope([25, 25], [1.0, 2.0]))
    rounds = [
        RoundRecord("a", t, 1, 1, 0.0, {}, {"stationarity_h": t, "stationarity_w": 2.0})
        for t in (1, 3)
    ]
    silent = RoundRecord("b", 1, 1, 1, 0.0)
    assert mean_stationarity(RunRecord("m", "0", {}, (silent, *rounds))) == 4.0
    assert math.isnan(mean_stationarity(RunRecord("m", "0", {}, (silent,))))


def test_a_cell_depends_on_its_seed_alone():
    cells = tiny().cells
    first, again = (run_cell(cells[0])[1]["cost"] for _ in range(2))
    other = next(c for c in cells if c.seed == 1 and c.partition == cells[0].partition)
    assert first == again
    assert run_cell(other)[1]["cost"] != first
