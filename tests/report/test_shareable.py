"""The page to share: whatever else a run's files hold, nothing of it is in the page."""

import re
from dataclasses import replace

import numpy as np
import pytest

from dpfedc.engine.run_record import RoundRecord, RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.noise import SIMULATED
from dpfedc.report.folder import name_cluster, write_results
from dpfedc.report.output_files import Labels
from dpfedc.report.shareable import TRIAL, write_shareable
from support.command_line import fitted_tables, outcome
from support.deployment import MemoryTransport, agreed
from support.pages import Page, chunks
from support.shared_runs import QUALITY, model, picture_model, promised_record
from support.summaries import CENTERS

WORD, NUMBER = "Zaphod7391846205", 7391846205
PUBLIC = {"n_records"}
"""The settings that are public facts; a shareable page takes no other."""
TAKEN = {"privacy_plan", "verdict", "doubts", "image_shape", "privacy"}
"""The results that a shareable page takes."""


def shared(folder, of=None, record=None):
    path = folder / "page.html"
    write_shareable(path, model() if of is None else of, record or promised_record())
    return Page(path)


def planted(value):
    """Return a value of the same kind in which every word and number is a marker."""
    if isinstance(value, dict):
        return {WORD: NUMBER, **{name: planted(inner) for name, inner in value.items()}}
    if isinstance(value, (list, tuple)):
        return [planted(inner) for inner in value] + [WORD]
    return WORD if isinstance(value, str) else NUMBER


def full_of_markers(record):
    """Return the record with markers in all places but those that the page may take from."""
    settings = {n: v if n in PUBLIC else planted(v) for n, v in record.settings.items()}
    results = {n: v if n in TAKEN else planted(v) for n, v in record.results.items()}
    stamp = record.results["privacy"]["stamp"]
    results["privacy"] = {**planted(record.results["privacy"]), "stamp": stamp}
    results["verdict"] = {**record.results["verdict"], "score": NUMBER, "rehearsed": [WORD]}
    results[WORD] = results["labels"] = WORD
    settings[WORD] = settings["run"] = WORD
    marks = {"accuracy": NUMBER / 1e10, WORD: NUMBER}
    rounds = [
        RoundRecord(WORD, NUMBER, NUMBER, NUMBER, NUMBER / 7, marks, marks, NUMBER)
        for _ in record.rounds
    ]
    stamps = (*(stamp for stamp in record.stamps if stamp == SIMULATED), WORD)
    return RunRecord(WORD, WORD, settings, tuple(rounds), stamps, results)


def is_clean(page):
    for marker in (WORD, str(NUMBER), f"{NUMBER:,}", "7391", "7,391"):
        assert marker.lower() not in page.source.lower(), marker
    for png in page.pictures():
        assert chunks(png) == ["IHDR", "IDAT", "IEND"]


@pytest.mark.parametrize("stamp", [SIMULATED, None])
@pytest.mark.parametrize("pictures", [False, True])
def test_nothing_but_what_is_named_goes_in(tmp_path, stamp, pictures):
    """With markers in every other place of record and model the page is the same to the byte."""
    record = promised_record(stamp, image_shape=[3, 4] if pictures else None)
    of = picture_model() if pictures else model()
    page = shared(tmp_path, of, record)
    about = {"method": WORD, "version": WORD, "run": WORD, "seed": NUMBER, "stamps": [WORD]}
    about["privacy"] = {**planted(record.results["privacy"]), "unit": "person"}
    about = about if not pictures else {**about, "privacy": None}
    again = shared(tmp_path, replace(of, about=about), full_of_markers(record))
    is_clean(again)
    assert again.source == page.source
    assert len(page.pictures()) == (2 if pictures else 0)


def test_it_says_who_how_many_how_sure_and_what_is_promised(tmp_path):
    page = shared(tmp_path, model().named(1, "old"))
    for words in (
        *("2 groups of persons", "400 persons at 3 sites were put into 2 clusters by 3 columns."),
        *("rough", "Rehearsed, it scored 0.6.", "A count is small.", "Cluster 1: old"),
        *("300 ± 10 persons", "smoker = yes", "Column by column", "Protected: every single person"),
        *("delta 0.00001", "everyone who sees the uploads", "Not protected:", "How much:"),
    ):
        assert words in page.text, words
    # Nothing is loaded from elsewhere.
    assert not any(word in page.source for word in ("http", "url(", "@import", "<script", "src="))
    assert "How good the clusters are" not in page.text
    assert "Silhouette: 0.38 ± 0.03." in shared(tmp_path, model(quality=QUALITY)).text


def test_seeded_noise_is_named_first(tmp_path):
    page = shared(tmp_path)
    assert page.text.index(TRIAL) < page.text.index("400 persons")
    assert TRIAL not in shared(tmp_path, record=promised_record(None)).text
    # Either of two marks is enough, and no word on the noise is taken for a bad one.
    record = promised_record(None)
    assert TRIAL in shared(tmp_path, record=replace(record, stamps=(SIMULATED,))).text
    stamped = {**record.results["privacy"], "stamp": "other"}
    odd = replace(record, results={**record.results, "privacy": stamped})
    assert TRIAL in shared(tmp_path, record=odd).text


def test_epsilon_follows_from_the_plan_not_from_what_was_reported(tmp_path):
    record = promised_record()
    told = {**record.results["privacy"], "epsilon": 1e-3, "delta": 1e-12, "trust": "local"}
    lied = replace(record, results={**record.results, "privacy": told})
    assert shared(tmp_path, record=lied).source == shared(tmp_path).source


@pytest.mark.parametrize(
    ("settings", "results", "lacking"),
    [
        ({"epsilon": None}, {"privacy": None, "privacy_plan": None}, "noise"),
        ({"epsilon": 1.0}, {"privacy": None, "privacy_plan": None}, "a proof"),
        ({"epsilon": 1.0}, {"privacy": None}, "a proof"),
    ],
)
def test_a_run_without_a_promise_is_refused(tmp_path, settings, results, lacking):
    record = promised_record(**results)
    record = replace(record, settings={**record.settings, **settings})
    with pytest.raises(InvalidInput, match=f"promises privacy, got one without {lacking}$"):
        shared(tmp_path, record=record)
    assert not list(tmp_path.iterdir())


def test_only_an_earlier_page_to_share_is_replaced(tmp_path):
    shared(tmp_path)
    shared(tmp_path)
    (tmp_path / "page.html").write_text("<!DOCTYPE html>\nmine")
    with pytest.raises(InvalidInput, match="must be a new file or an earlier page to share"):
        shared(tmp_path)
    assert (tmp_path / "page.html").read_text() == "<!DOCTYPE html>\nmine"


# --- from the command line ---------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the files of a run, in which everything private is a marker."""
    folder = tmp_path / WORD
    folder.mkdir()
    model(about={"run": WORD, "seed": NUMBER}).write(folder / "model.npz")
    full_of_markers(promised_record()).write(folder / "run.jsonl")
    labels = f"site,{WORD},cluster\n{WORD},{WORD},0\n{WORD},{NUMBER},1\n"
    (folder / "labels.csv").write_text(labels)
    return folder


def test_the_command_writes_one_file_without_a_marker(folder, capsys, tmp_path):
    code, out, err = outcome(capsys, ["report", folder, "--shareable"])
    assert (code, out, err) == (0, f"To share: {folder / 'shareable.html'}\n", "")
    is_clean(Page(folder / "shareable.html"))
    other = tmp_path / "new" / "page.html"
    assert outcome(capsys, ["report", folder, "--shareable", "--output", other])[0] == 0
    assert other.read_bytes() == (folder / "shareable.html").read_bytes()
    assert not (folder / "report.html").exists()
    code, _, err = outcome(capsys, ["report", folder, "--output", other])
    assert (code, err) == (2, "dpfedc: error: --output must come with --shareable, got it alone\n")


def test_names_reach_a_page_that_is_there(folder, capsys):
    outcome(capsys, ["report", folder, "--shareable"])
    name_cluster(folder, 1, "old smokers")
    assert "old smokers" in (folder / "shareable.html").read_text()


def test_a_run_without_noise_is_refused_in_a_line(capsys, tmp_path):
    _, trial, _ = fitted_tables(tmp_path)
    code, _, err = outcome(capsys, ["report", trial, "--shareable"])
    assert code == 2
    assert err == (
        "dpfedc: error: a page to share must be of a run that promises privacy, got one without "
        "noise\n"
    )
    assert not (trial / "shareable.html").exists()


@pytest.mark.parametrize("noise", ["simulated", "secure"])
def test_the_page_of_a_deployed_run_names_nobody(noise, capsys, tmp_path):
    agreement = agreed(noise=noise, seed=NUMBER % 2**31)
    MemoryTransport(agreement, tmp_path).coordinator().run()
    assert outcome(capsys, ["report", tmp_path / "run", "--shareable"])[0] == 0
    page = Page(tmp_path / "run" / "shareable.html")
    known = (*("study", "university", "berlin", "geneva", "lisbon"), str(tmp_path))
    for word in (*known, agreement.digest[:12], str(agreement.seed), "dp-lloyd", "random_state"):
        assert word not in page.source, word
    assert not re.search(r"\b(120|80|100) records", page.text)
    assert "300 records at 3 sites" in page.text
    assert (TRIAL in page.text) == (noise == "simulated")


def test_a_new_run_takes_the_page_of_an_earlier_one_away(folder, capsys):
    outcome(capsys, ["report", folder, "--shareable"])
    labels = Labels(np.zeros(4, int), np.array([0, 1, 0, 1]))
    write_results(folder, ClusterModel.read(folder / "model.npz"), promised_record(), labels)
    assert not (folder / "shareable.html").exists()


def test_a_model_with_exact_values_is_not_shared(tmp_path):
    """It lies beside the record of another run, say, because a fit was interrupted."""
    exact = replace(model(), size_errors=np.zeros(2), center_errors=np.zeros_like(CENTERS))
    with pytest.raises(InvalidInput, match="got one with exact values"):
        shared(tmp_path, exact)
    assert not (tmp_path / "page.html").exists()
