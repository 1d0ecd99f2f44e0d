"""The page of a run: parsed, searched for what must and must not be where, written whole."""

import os
from dataclasses import replace

import numpy as np
import pytest

from dpfedc.engine.run_record import RoundRecord, RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.report.page import report_content, write_report
from support.pages import Page
from support.shared_runs import QUALITY, model, picture_model, promised_record
from support.summaries import bent_model

EVIL = "<script>alert('x')</script>&\"$x_{$"
SIZES = np.array([[100, 30], [110, 20], [100, 40]])
SITES = ("Oslo", "Bergen", "Bodø")


def written(folder, record=None, of=None, sizes=SIZES, names=SITES):
    record = promised_record() if record is None else record
    content = report_content(model() if of is None else of, record, sizes, names)
    return Page(write_report(folder, content))


def test_page_is_well_formed_and_one_file(tmp_path):
    page = written(tmp_path / "new" / "folder")
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["report.html"]
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert {th["scope"] for th in page.all("th")} == {"col", "row"}
    assert len(page.pictures()) == 1
    assert all(len(image["alt"]) > 30 for image in page.all("img"))
    assert [len(svg["aria-label"]) > 30 for svg in page.all("svg")] == [True, True]
    # Nothing is loaded from elsewhere.
    assert not any(word in page.source for word in ("http", "url(", "@import", "<script"))


def test_it_opens_with_the_clusters_and_says_privacy_in_short(tmp_path):
    page = written(tmp_path)
    order = (
        *("Patients", "simulated noise", "400 persons at 3 sites were put into 2 clusters by 3"),
        *("rough", "Rehearsed, it scored 0.6. So so.", "A count is small.", "Who the groups are"),
        *("300 ± 10 persons", "75 %", "smoker = no", "▼ 40.0", "Column by column", "missing"),
        *("Privacy", "Protected: every single person", "delta 0.00001", "From whom:"),
        *("Not protected:", "All that is promised", "How much:", "mean: what mean is for"),
        *("How the run went", "It took 5 rounds", "dp-fedc of dpfedc 1.2.3", "Did it settle?"),
        *("Exact values of this trial: not released, do not publish", "accuracy", "0.8750"),
        *("Accuracy per round", "k-means on pooled data, 0.900", "Cluster sizes per site"),
        *("persons per site: 130 to 140", "Settings", "How this was made", "dpfedc fit"),
    )
    at = 0
    for words in order:
        assert words in page.text[at:], words
        at = page.text.index(words, at)
    details = page.source.index("<details>")
    assert page.source.count('<p class="open">') == 1  # one thing stands out, and is not folded
    assert page.source.index('<p class="open">') < details
    assert '<section class="verdict rough"' in page.source


@pytest.mark.parametrize("of", [model, bent_model])
def test_quality_is_on_the_page_where_it_was_released(tmp_path, of):
    assert "How good the clusters are" not in written(tmp_path, of=of()).text
    page = written(tmp_path, of=of(quality=QUALITY))
    unit = "person" if of is model else "record"
    for words in (
        *("How good the clusters are", "Silhouette: 0.38 ± 0.03.", f"0 where {unit}s lie midway"),
        *(f"Cost: 0.63 ± 0.06, the mean squared distance of {unit}s", "0.80 ± 0.06", "4 (0 to 14)"),
    ):
        assert words in page.text, words


def test_exact_values_stand_in_the_marked_part_only(tmp_path):
    marks = {"accuracy": 0.73918, "cost": 739.18}
    pooled = {"accuracy": 0.64827, "cost": 648.27}
    record = promised_record().with_exact(
        scores=marks, pooled_kmeans=pooled, cluster_sizes=[7391, 6482]
    )
    rounds = [
        replace(r, diagnostics={"accuracy": 0.5519, "objective": 0.5519}) for r in record.rounds
    ]
    page = written(tmp_path, replace(record, rounds=tuple(rounds)))
    for words in ("0.7392", "739.2", "0.6483", "648.3", "7,391", "6,482"):
        assert words in page.text
        assert words not in page.outside
    assert not any(digits in page.outside for digits in ("7391", "6482", "5519", "0.55"))
    before, after = page.source.split('<section class="exact')
    assert "5519" not in before
    assert "0.55 in round" in after
    assert "objective" not in page.text
    bare = replace(record, results={n: v for n, v in record.results.items() if n in DEPLOYED})
    deployed = written(tmp_path, replace(bare, rounds=()), sizes=None, names=None)
    assert "Exact values" not in deployed.text


DEPLOYED = ("privacy", "privacy_plan", "stages", "verdict", "doubts", "title")


def test_every_run_shows_how_far_centres_moved(tmp_path):
    record = promised_record()
    page = written(tmp_path, replace(record, rounds=record.rounds[:3]), sizes=None)
    labels = [svg["aria-label"] for svg in page.all("svg")]
    assert labels[0] == (
        "Line chart of the movement of centres per round: 0.80 in round 2, 0.40 in round 3."
    )
    still = [replace(r, moved=None, diagnostics={}) for r in record.rounds]
    assert not written(tmp_path, replace(record, rounds=tuple(still))).all("svg")


def test_a_doubt_is_told_once(tmp_path):
    told = {"word": "useless", "sentences": ["Few records.", "A count is small."]}
    page = written(tmp_path, promised_record(verdict=told))
    assert page.text.count("count is small") == 1
    assert (
        "Noise hides the groups: a run without noise would find others. Few records." in page.text
    )


def test_a_record_of_before_verdicts_has_a_page(tmp_path):
    record = promised_record()
    old = {name: record.results[name] for name in ("privacy", "privacy_plan", "scores")}
    page = written(tmp_path, replace(record, results=old))
    assert "Clusters by dp-fedc" in page.text
    assert "verdict" not in page.source[page.source.index("<body>") :]
    assert "Doubts" not in page.source


def test_a_run_without_noise_says_that_all_is_exact(tmp_path):
    record = promised_record(privacy=None, privacy_plan=None, stages=[], doubts=[])
    record = replace(
        record, stamps=("no noise was added",), settings={**record.settings, "epsilon": None}
    )
    exact = model(error=0, size_errors=np.zeros(2))
    page = written(tmp_path, record, exact)
    assert (
        "Sizes and centres are exact values of the last round: no noise was added, so they protect"
        in page.text
    )
    assert "this run adds no noise, so it promises no privacy" in page.text
    assert "error bars" not in page.text
    assert "±" not in page.text
    assert page.source.count("<details") == 1  # of the settings


def test_all_that_is_said_of_a_run_without_a_proof_can_be_unfolded(tmp_path):
    notes = ["Not protected: it is no proof.", "Note: two.", "Note: three."]
    page = written(tmp_path, promised_record(privacy=None, privacy_plan=None, privacy_notes=notes))
    folded = page.source.index("<details>")
    assert page.source.index("it is no proof.") < folded < page.source.index("three.")
    assert page.source.count('<p class="open">') == 1


def test_pictures_are_shown_in_the_cards(tmp_path):
    page = written(tmp_path, promised_record(image_shape=[3, 4]), picture_model(), sizes=None)
    assert len(page.pictures()) == 2
    assert "Column by column" not in page.text


def test_page_escapes_every_text(tmp_path):
    rounds = [
        RoundRecord(stage, 1, 1, 1, 0.1, diagnostics={"accuracy": 0.5}, moved=0.5)
        for stage in (EVIL, "b")
    ]
    record = promised_record(
        verdict={"word": EVIL, "sentences": [EVIL]}, doubts=[EVIL], title=EVIL, command=EVIL
    )
    settings = {**record.settings, EVIL: EVIL, "list": [EVIL], "nested": {EVIL: 1}}
    settings |= {"coordinator": EVIL, "run": EVIL}
    record = RunRecord(EVIL, EVIL, settings, tuple(rounds), (EVIL,), record.results)
    names = [EVIL[:40], EVIL]
    of = replace(picture_model(), feature_names=(*names, *"abcdefghij")).named(0, EVIL[:40])
    page = written(tmp_path, record, of, names=[EVIL] * 3)
    assert not page.all("script")
    assert page.text.count("<script>") >= 16
    assert "alert('x')" not in page.source  # the quotation marks are escaped, too
    pictured = {**record.results, "image_shape": [3, 4]}
    assert not written(tmp_path, replace(record, results=pictured), of).all("script")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.1 + 0.2, "0.3"),
        (3021.5, "3021.5"),
        (1e-5, "0.00001"),
        (None, "none"),
        (True, "true"),
        ([1, 2], "[1, 2]"),
        ({}, "{}"),
        (float("inf"), "Infinity"),
        (2**53, "9007199254740992"),
        (12345678.0, "12345678"),
    ],
)
def test_settings_are_shown_in_short(tmp_path, value, shown):
    record = promised_record()
    page = written(tmp_path, replace(record, settings={**record.settings, "a": {"b": value}}))
    assert f'<th scope="row">a.b</th><td>{shown}</td>' in page.source


def test_numbers_have_no_powers_of_ten_and_no_seventeen_digits(tmp_path):
    centers = np.array([[3021.123456789, 1.0 / 3], [2.0e6, 2.0 / 3]])
    wild = replace(picture_model(), directions=centers, center=np.zeros(2), centers=centers)
    page = written(tmp_path, of=wild)
    text = page.outside[: page.outside.index("All that is promised")]
    assert "3,021" in text
    assert "e+" not in text
    assert "3333" not in text


@pytest.mark.parametrize(
    "changes",
    [
        {"of": picture_model(), "record": promised_record(image_shape=(5, 5))},
        {"names": ["one"]},
        {"sizes": [[-1, 2]], "names": None},
        {"record": promised_record(command="\ud800")},  # the last thing made: it cannot be encoded
    ],
)
def test_nothing_is_written_on_failure(tmp_path, changes):
    with pytest.raises(ValueError, match=r"must|encode"):
        written(tmp_path / "folder", **changes)
    assert not list(tmp_path.iterdir())


def test_a_failing_disk_leaves_the_earlier_page_as_it_was(tmp_path, monkeypatch):
    written(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fsync(place):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="no space left"):
        written(tmp_path, promised_record(title="other"))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "taken").write_text("x")
    with pytest.raises(InvalidInput, match=r"folder must be a directory, got the file .*taken"):
        written(tmp_path / "taken")
