"""Verdicts on plans are kept: found again for the same plan, and for no other."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.settings import PrivacyTarget
from dpfedc.verdict import kept
from dpfedc.verdict.kept import kept_verdict
from dpfedc.verdict.verdict import Verdict

GIVEN = {"n_clusters": 2, "norm_bound": 5.0, "n_rounds": 3}


@pytest.fixture
def rehearsed(monkeypatch, tmp_path):
    """Have verdicts kept in a new folder, and return the plans that were rehearsed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plans = []

    def judge(method, given, facts, plan):
        plans.append(plan)
        return Verdict("rough", 0.5, (f"Rehearsal {len(plans)}.",))

    monkeypatch.setattr(kept, "expected_verdict", judge)
    return plans


def asked(method="dp-lloyd", sizes=(100, 100), n_features=2, target=None, **given):
    method, facts = method_named(method), Federation(n_features, np.array(sizes))
    given = {**GIVEN, **given}
    target = PrivacyTarget(4.0, 1e-5) if target is None else target
    return kept_verdict(method, given, facts, method.plan(given, facts, target))


def test_the_same_plan_is_not_rehearsed_twice(rehearsed, tmp_path):
    assert asked() == asked()
    assert len(rehearsed) == 1
    (file,) = (tmp_path / "cache" / "dpfedc" / "verdicts").iterdir()
    assert Verdict.from_plain(json.loads(file.read_text())) == asked()


OTHERS = {
    "settings": {"n_clusters": 3},
    "a setting that is an array": {"init": np.zeros((2, 2))},
    "rounds": {"n_rounds": 4},
    "the bound": {"norm_bound": 6.0},
    "records": {"sizes": (100, 101)},
    "sites": {"sizes": (100, 50, 50)},
    "features": {"n_features": 3},
    "method": {"method": "federated-k-means"},
    "epsilon": {"target": PrivacyTarget(3.0, 1e-5)},
    "delta": {"target": PrivacyTarget(4.0, 1e-6)},
    "trust": {"target": PrivacyTarget(4.0, 1e-5, "trusted-server")},
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_plan_is_rehearsed_anew(rehearsed, other):
    asked()
    asked(**OTHERS[other])
    assert len(rehearsed) == 2
    asked(**OTHERS[other])
    asked()
    assert len(rehearsed) == 2


def test_arrays_that_differ_in_a_value_are_other_settings(rehearsed):
    ranges = np.tile([0.0, 1.0], (2000, 1))  # so many that their repr leaves some out
    other = ranges.copy()
    other[1000, 1] = 2.0
    settings = {"method": "dp-fedc", "n_features": 2000, "norm_bound": "auto"}
    asked(**settings, feature_ranges=ranges)
    asked(**settings, feature_ranges=other)
    assert len(rehearsed) == 2


@pytest.mark.parametrize("changed", ["version", "_code"])
def test_changed_code_makes_verdicts_anew(rehearsed, monkeypatch, changed):
    asked()
    monkeypatch.setattr(kept, changed, lambda *_: "another")
    asked()
    assert len(rehearsed) == 2


def test_a_folder_that_cannot_be_used_is_done_without(rehearsed, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [asked().word, asked().word] == ["rough", "rough"]
    assert len(rehearsed) == 2
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b"[]", b'{"word": "usable"}'])
def test_a_damaged_file_is_replaced(rehearsed, tmp_path, content):
    asked()
    (file,) = (tmp_path / "cache" / "dpfedc" / "verdicts").iterdir()
    file.write_bytes(content)
    assert asked().sentences == ("Rehearsal 2.",)
    assert asked().sentences == ("Rehearsal 2.",)
    assert len(rehearsed) == 2


def test_without_a_cache_of_one_s_own_it_is_the_usual_one(monkeypatch, tmp_path):
    for home in ("", None):
        if home is None:
            monkeypatch.delenv("XDG_CACHE_HOME")
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", home)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert kept._folder() == tmp_path / ".cache" / "dpfedc" / "verdicts"


def test_what_is_kept_is_what_was_found():
    """Of a real rehearsal, through the file, to the last digit."""
    method, facts = method_named("dp-lloyd"), Federation(2, np.array([40, 40]))
    plan = method.plan(GIVEN, facts, PrivacyTarget(4.0, 1e-5))
    first, again = (kept_verdict(method, GIVEN, facts, plan) for _ in range(2))
    assert first == again
    assert first.rehearsed
    assert replace(first, word="") != again
