"""What a server may offer is bounded before a site plans, computes or makes room for anything."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpfedc
from dpfedc.clustering import run_plan
from dpfedc.deployment import control, limits
from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.control import opened
from dpfedc.deployment.limits import MAX_FEATURES, MAX_SITES, MAX_WORDS
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.site_service import MAX_TOLD, NOT_OURS, SiteService
from dpfedc.errors import InvalidInput
from dpfedc.tables.schema import MAX_COLUMNS, Schema
from support.deployment import agreed
from support.site_services import site_folder

TESTS = Path(__file__).parents[1]


def test_no_number_in_an_offer_costs_a_site_much_memory_or_time():
    """The process has 500 MiB and a minute for 1,400 of them, and each is refused or planned."""
    env = {**os.environ, "PYTHONPATH": f"{Path(dpfedc.__file__).parents[1]}{os.pathsep}{TESTS}"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.planted_offers"],
        capture_output=True, text=True, env=env, check=False,
    )  # fmt: skip
    last = "\n".join(done.stderr.splitlines()[-8:])
    assert done.returncode == 0, f"ended with {done.returncode} at\n{last}"
    found = json.loads(done.stdout)
    assert found["refused"] > 1000
    assert found["taken"] > 100
    assert found["fields"] == [
        "deadline", "epsilon", "min_answers", "privacy", "schema", "seed", "settings", "sites",
    ]  # fmt: skip


def forged(agreement, *, n_rounds=None, q=None, delta=None, **changes):
    """Return the text of an agreement that was never planned; the releases may be others."""
    content = json.loads(agreement.to_json())
    content["settings"] |= changes.pop("settings", {})
    for release in content["privacy"]["releases"]:
        if release["stage"] in ("lloyd", "factorisation") and n_rounds is not None:
            release |= {"n_rounds": n_rounds, "rounds_per_site": n_rounds}
        if release["stage"] == "factorisation" and q is not None:
            release["sampling_probability"] = q
    if delta is not None:
        content["privacy"]["delta"] = delta
    return json.dumps({**content, **changes}, sort_keys=True, separators=(",", ":"))


def many_sites(n):
    return [{"key": None, "n_records": 1, "name": f"s{i}"} for i in range(n)]


BEYOND = {
    "clusters": ({"settings": {"n_clusters": 10**9}}, "n_clusters must be from 1 to 10000"),
    "cells": ({"settings": {"cells": 10**9}}, "cells must be from 1 to 2000"),
    "rounds": ({"settings": {"n_rounds": 10**8}}, "n_rounds must be from 1 to 100000"),
    "refining": ({"settings": {"refine_rounds": 10**8}}, "refine_rounds must be from 0 to 100000"),
    "steps": ({"settings": {"membership_steps": 10**12}}, "steps must be from 1 to 10000"),
    "subspace": ({"settings": {"subspace": 10**6}}, "subspace must be from 1 to 3"),
    "penalty": ({"settings": {"orthogonality": 1e300}}, "must be >= 0 and <= 1000000"),
    "step": ({"settings": {"step": 1e300}}, "step must be > 0 and <= 1000000"),
    "epsilon": ({"epsilon": 1e300}, "epsilon must be >= 1e-06 and <= 1000000"),
    "delta": ({"delta": 0.5}, "delta must be at most 0.1"),
    "deadline": ({"deadline": 1e9}, "deadline must be > 0 and <= 604800"),
    "sites": ({"sites": many_sites(MAX_SITES + 1)}, "number of sites must be at most 10,000"),
    "features": (
        {"features": [f"x{i}" for i in range(MAX_FEATURES + 1)]},
        "number of features must be at most 100,000",
    ),
    "turns": (
        {"sites": many_sites(MAX_SITES), "n_rounds": 1001},
        "n_rounds times the number of sites must be at most 10,000,000",
    ),
    "sampled rounds": (
        {"n_rounds": 10_001, "q": 0.5}, "n_rounds with sampling must be at most 10,000",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BEYOND.values(), ids=BEYOND)
def test_what_is_beyond_bounds_is_refused_before_anything_is_planned(monkeypatch, change, message):
    text = forged(agreed("dp-fedc"), **change)

    def planned(*_, **__):
        raise AssertionError("planned")

    monkeypatch.setattr(run_plan, "told_of_noise", planned)
    monkeypatch.setattr(run_plan, "calibrated_plan", planned)
    with pytest.raises(InvalidInput, match=message):
        Agreement.from_json(text)


def wide(n_features, **changes):
    return agreed("dp-fedc", features=tuple(f"x{i}" for i in range(n_features)), **changes)


def test_a_message_that_nobody_could_send_is_refused():
    """A subspace of 9,000 features takes a matrix of 81 million numbers."""
    settings = {"subspace": 3, "refine_rounds": 0}
    with pytest.raises(InvalidInput, match="numbers in a message of stage 'subspace' must be at"):
        wide(9000, settings=settings)
    assert wide(900, settings=settings).verified()
    with pytest.raises(InvalidInput, match="numbers in a message of stage 'factorisation'"):
        wide(10_000, settings={"n_clusters": 9999, "refine_rounds": 0, "subspace": None})


def test_a_round_that_takes_days_is_refused():
    sites = tuple(Site(f"s{i}", 5 * 10**6) for i in range(3))
    settings = {"n_clusters": 100, "membership_steps": 10_000}
    with pytest.raises(InvalidInput, match="multiplications of a round of stage"):
        wide(100, sites=sites, settings=settings)
    assert wide(100, sites=sites, settings={**settings, "membership_steps": 50}).verified()


def test_nothing_is_planned_anew_for_an_offer_whose_rounds_are_beyond_bounds(monkeypatch):
    agreement = wide(100)
    monkeypatch.setattr(limits, "MAX_NUMBERS", 10)
    monkeypatch.setattr(run_plan, "calibrated_plan", None)
    with pytest.raises(InvalidInput, match="numbers in a message"):
        Agreement.from_json(agreement.to_json()).verified()


def column(i):
    return {"name": f"a column with a name, number {i}", "kind": "number", "range": [0, 110.25],
            "missing": "indicator", "typical": [20.125, 70.375]}  # fmt: skip


def test_half_the_largest_schema_takes_less_than_half_the_longest_offer():
    schema = Schema.of({"column": [column(i) for i in range(MAX_COLUMNS // 2)]})
    agreement = agreed("dp-fedc", schema=schema, features=schema.features)
    offer = control.offer(agreement)
    assert len(offer) < MAX_WORDS / 2
    again = Agreement.from_json(control.words_of(offer)["agreement"])
    assert again.digest == agreement.digest


def test_looking_for_names_that_are_there_twice_takes_no_time_squared():
    """With 20,000 columns and 1,000 values each comparison of all with all would take minutes."""

    class Counted(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other):
            Counted.compared += 1
            return str.__eq__(self, other)

    names = [Counted(f"c{i}") for i in range(2000)]
    columns = [{"name": name, "kind": "number", "range": [0, 1]} for name in names]
    Schema.of({"column": columns})
    assert Counted.compared < 20 * len(names)


@pytest.fixture
def service(tmp_path, told):
    service = SiteService(site_folder(tmp_path, "berlin"), allow_simulated=True, tell=told.append)
    yield service
    service.close()


WORDS = {
    "60 MB of brackets": b'{"kind":"offer","agreement":"' + b"[" * (60 * 2**20) + b'"}',
    "60 MB of nests": b'{"agreement":' + b"[" * (60 * 2**20),
    "nests": b'{"agreement":' + b"[" * 2**20,
    "ten million numbers": b'{"agreement":[' + b"0," * 10**7 + b'0],"kind":"offer"}',
    "four million numbers": b'{"agreement":[' + b"0," * (4 * 10**6 - 100) + b'0],"kind":"offer"}',
    "two kinds": b'{"kind":"hello","kind":"offer"}',
    "a number that is none": b'{"kind":"hello","nonce":NaN}',
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_words_beyond_bounds_are_not_parsed(service, monkeypatch, words):
    monkeypatch.setattr(control, "_words", None)
    assert opened(service.reply(words)) == Refusal(NOT_OURS)


@pytest.mark.parametrize("nested", [b"[" * 10**6, b"[" + b"0," * 2 * 10**6, b"[1e999]", b""])
def test_so_are_agreements_in_an_offer(service, nested):
    offer = json.dumps({"kind": "offer", "agreement": nested.decode()}).encode()
    assert "not JSON within bounds" in opened(service.reply(offer)).reason


def test_operators_are_not_told_megabytes(service, told):
    long = json.dumps({"kind": "offer", "agreement": json.dumps({"format": "x" * 10**6})}).encode()
    assert isinstance(opened(service.reply(long)), Refusal)
    agreement = json.loads(agreed().to_json()) | {"settings": {"z" * 10**6: 1}}
    text = json.dumps(agreement, sort_keys=True, separators=(",", ":"))
    service.reply(json.dumps({"kind": "offer", "agreement": text}).encode())
    assert len(told) == 2
    assert all(len(text) <= MAX_TOLD for text in told)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {}, optional={"kind": st.sampled_from(["hello", "offer", "result"]) | PLAIN,
                      "agreement": PLAIN, "run": PLAIN, "model": PLAIN}
    ).map(lambda words: json.dumps(words).encode())
    | st.binary(max_size=80).map(lambda data: b"{" + data)
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_any_words_are_answered_or_refused(words):
    """Never another exception, and the same words are read the same way twice."""
    with contextlib.suppress(InvalidInput):
        found = control.words_of(words)
        assert found == json.loads(words)
        with contextlib.suppress(InvalidInput):
            Agreement.from_json(str(found.get("agreement")))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_agreement_is_refused_or_says_what_it_says(data):
    """Refused or equal: what is taken is written again, letter by letter, as it came."""
    text = FUZZED.to_json()
    at = data.draw(st.integers(0, len(text) - 1))
    until = at + data.draw(st.integers(0, 3))
    changed = text[:at] + data.draw(st.text('[]{},:"\\019e-x\n', max_size=3)) + text[until:]
    with contextlib.suppress(InvalidInput):
        assert Agreement.from_json(changed).to_json() == changed.strip()


FUZZED = agreed("dp-fedc", settings={"init": np.eye(3).tolist(), "norm_bound": 9.0})
