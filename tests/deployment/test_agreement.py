"""What coordinator and sites agree on: canonical, complete, and believed by nobody."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpfedc
from dpfedc.clustering.registry import method_named
from dpfedc.deployment.agreement import FORMAT, Agreement, Site
from dpfedc.deployment.keys import public_key
from dpfedc.deployment.messages import OtherVersion
from dpfedc.deployment.proposal import proposed_by_toml
from dpfedc.deployment.terms import terms
from dpfedc.errors import DPFedCError, InvalidInput
from dpfedc.privacy.accountant import plan_epsilon
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.tables.schema import Schema
from support.deployment import FEATURES, KEY, SIZES, agreed

TOML = """
[run]
name = "study"
coordinator = "university"
clusters = 3
features = ["age", "weight", "height"]

[privacy]
epsilon = 8.0
delta = 1e-5
norm_bound = 12.0

[rounds]
rounds = 4
sites_per_round = 2
deadline = 30

[settings]
refine_rounds = 2
"""
SITES = tuple(Site(name, n) for name, n in SIZES.items())


def changed(agreement, **changes):
    """Return the agreement's JSON with other top-level values."""
    content = json.loads(agreement.to_json())
    return json.dumps({**content, **changes}, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("method", ["dp-fedc", "dp-lloyd", "federated-k-means"])
def test_json_brings_back_the_same_agreement(method):
    agreement = agreed(method, settings={"init": np.eye(3).tolist()})
    again = Agreement.from_json(agreement.to_json())
    assert again == agreement
    assert again.digest == agreement.digest
    assert again.plan.privacy == agreement.privacy


def test_any_difference_is_another_run():
    agreement = agreed()
    others = [
        replace(agreement, seed=8),
        replace(agreement, deadline=6.0),
        replace(agreement, min_answers=2),
        replace(agreement, sites=(Site("berlin", 121), *agreement.sites[1:])),
        replace(agreement, features=("age", "height", "weight")),
        agreed(epsilon=49.0),
    ]
    digests = {agreement.digest, *(other.digest for other in others)}
    assert len(digests) == len(others) + 1


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"format": "dpfedc-agreement-1"},
        {"method": "k-fed"},
        {"settings": {"n_clusters": 3, "extra_steps": 2}},
        {"settings": {"n_clusters": 3, "batch_size": 2}},
        {"settings": {"n_rounds": 3}},
        {"settings": [["n_clusters", 3]]},
        {"features": ["age", "age"]},
        {"features": []},
        {"sites": []},
        {"sites": [{"name": "berlin", "n_records": 1}] * 2},
        {"sites": [{"name": "berlin", "n_records": 0}]},
        {"sites": [{"name": "berlin", "n_records": 9, "address": "here"}]},
        {"epsilon": 0},
        {"epsilon": "much"},
        {"noise": "none"},
        {"seed": -1},
        {"seed": 0.5},
        {"deadline": 0},
        {"min_answers": 4},
        {"receipt_key": "key"},
        {"privacy": {}},
        {"name": ""},
        {"name": "two\nlines"},
    ],
)
def test_what_is_not_known_is_refused(change):
    with pytest.raises(InvalidInput):
        Agreement.from_json(changed(agreed(), **change))


@given(st.text(max_size=200) | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
@settings(max_examples=50)
def test_any_text_is_an_agreement_or_refused(text):
    with pytest.raises(InvalidInput):
        Agreement.from_json(text)


def test_another_way_to_write_it_is_refused():
    text = json.dumps(json.loads(agreed().to_json()), indent=1)
    with pytest.raises(InvalidInput, match="canonical"):
        Agreement.from_json(text)


def test_no_server_is_trusted_with_exact_uploads():
    agreement = agreed()
    with pytest.raises(InvalidInput, match="must be one of local, secure-aggregation, got"):
        replace(agreement, privacy=replace(agreement.privacy, trust="trusted-server"))


def with_noise(agreement, factor):
    releases = tuple(
        replace(r, noise_multiplier=factor * r.noise_multiplier) for r in agreement.privacy.releases
    )
    return replace(agreement, privacy=replace(agreement.privacy, releases=releases))


def test_a_site_plans_again_and_refuses_another_plan():
    agreement = agreed()
    more_rounds = tuple(
        replace(r, n_rounds=9, rounds_per_site=9) if r.n_rounds > 1 else r
        for r in agreement.privacy.releases
    )
    for other in (
        replace(agreement, privacy=replace(agreement.privacy, releases=more_rounds)),
        replace(agreement, settings={**agreement.settings, "n_rounds": 2}),
        replace(agreement, sites=(Site("berlin", 120), Site("geneva", 80))),
    ):
        with pytest.raises(InvalidInput, match="privacy plan must be"):
            _ = other.plan


def test_a_site_computes_the_noise_again_and_refuses_another():
    agreement = agreed()
    assert agreement.verified() == agreement.digest
    for other in (
        with_noise(agreement, 0.5),
        with_noise(agreement, 1.01),
        replace(agreement, epsilon=60.0),
        replace(agreement, privacy=replace(agreement.privacy, delta=1e-9)),
    ):
        with pytest.raises(InvalidInput, match="must have noise multiplier"):
            other.verified()
    # Computers round differently; but what is rounded down must still keep epsilon.
    assert with_noise(agreement, 1 + 1e-4).verified()
    with pytest.raises(InvalidInput, match="keep epsilon"):
        with_noise(agreement, 1 - 5e-4).verified()


def test_another_format_is_refused_by_name():
    for other in ("dpfedc-agreement-8", "dpfedc-agreement-10", 3, None):
        with pytest.raises(OtherVersion, match=f"must be {FORMAT}, .* got '{other}': have the old"):
            Agreement.from_json(changed(agreed(), format=other, unknown=1))


def test_packages_of_different_versions_can_agree(monkeypatch):
    """The terms have a format of their own, so no release of the package parts a federation."""
    agreement = agreed()
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "dpfedc" and hasattr(module, "__version__"):
            monkeypatch.setattr(module, "__version__", "999.9")
    assert dpfedc.__version__ == "999.9"
    newer = agreed()
    assert newer.to_json() == agreement.to_json()
    again = Agreement.from_json(agreement.to_json())
    assert again.verified() == newer.digest == agreement.digest


def test_secure_noise_needs_sums_that_cannot_wrap():
    sites = (Site("a", 2**23), Site("b", 2**23))
    with pytest.raises(InvalidInput, match="n_records"):
        agreed(sites=sites, noise="secure")
    assert agreed(sites=sites).plan.n_rounds == 4


def test_a_plan_in_toml():
    agreement = proposed_by_toml(TOML, sites=SITES, receipt_key=public_key(KEY))
    assert agreement.method == "dp-fedc"
    assert agreement.noise == "secure"
    assert agreement.settings == {
        "n_clusters": 3,
        "n_rounds": 4,
        "sites_per_round": 2,
        "norm_bound": 12.0,
        "refine_rounds": 2,
    }
    assert (agreement.deadline, agreement.min_answers) == (30, 1)
    assert (agreement.features, agreement.schema) == (FEATURES, None)
    assert agreement.privacy.of_stage("factorisation").rounds_per_site == 3
    assert float(agreement.declared["bound"]) == 12.0
    assert Agreement.from_json(agreement.to_json()) == agreement


def test_a_plan_may_leave_shape_and_number_to_the_run():
    new = 'clusters = "auto"\nk_range = [2, 5]\nshape = "any"\nprototypes = 7'
    text = TOML.replace("clusters = 3", new)
    agreement = proposed_by_toml(text, sites=SITES, receipt_key=public_key(KEY))
    assert agreement.cluster_range == (2, 5)
    assert agreement.settings["n_prototypes"] == 7
    last = agreement.exchanges[-1]
    assert (last.stage.name, last.form.shape) == ("neighbours", (7, 7))
    told = " ".join(terms(agreement))
    assert "2 to 5 clusters, as many as the released values support" in told
    assert "neighbours (which prototypes have records between them), once" in told
    assert Agreement.from_json(agreement.to_json()).verified() == agreement.digest


def test_work_counts_prototypes():
    method, facts = method_named("dp-fedc"), agreed().facts
    few, many = (
        method.work_per_record({"n_clusters": 2, "n_prototypes": n}, facts) for n in (4, 400)
    )
    assert many > 1000 * few


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("epsilon = 8.0", "", "epsilon"),
        ("epsilon = 8.0", "epsilon = -8.0", "epsilon"),
        ("clusters = 3", "clusters = 0", "n_clusters"),
        ("clusters = 3", 'clusters = "many"', "n_clusters"),
        ("clusters = 3", "clusters = 3\nk_range = [2, 4]", "k_range must be None unless"),
        ("clusters = 3", 'clusters = "auto"\nk_range = [4, 2]', "k_range's high"),
        ("clusters = 3", 'clusters = "auto"\nk_range = [1, 4]', "k_range's low"),
        ("clusters = 3", 'clusters = "auto"\nk_range = "2-4"', "k_range must be two"),
        ("clusters = 3", 'clusters = 3\nshape = "square"', "shape"),
        ("clusters = 3", "clusters = 3\nprototypes = 2", "n_prototypes"),
        ("rounds = 4", "speed = 4", "rounds"),
        ("[settings]", "[extras]", "table"),
        ("refine_rounds = 2", "extra_steps = 2", "settings of dp-fedc"),
        ("sites_per_round = 2", "sites_per_round = 4", "sites_per_round"),
        ("[run]", "run = 1\n[other]", "run must be a table"),
        ("[run]", "[run", "TOML"),
    ],
)
def test_a_plan_that_cannot_be_agreed_on(old, new, word):
    with pytest.raises(InvalidInput, match=word):
        proposed_by_toml(TOML.replace(old, new), sites=SITES, receipt_key=public_key(KEY))


def test_cohorts_are_balanced_and_the_same_for_everyone():
    agreement = agreed(settings={"n_rounds": 7, "sites_per_round": 2})
    again = Agreement.from_json(agreement.to_json())
    cohorts = [agreement.cohort("lloyd", t) for t in range(1, 8)]
    assert all(np.array_equal(c, again.cohort("lloyd", t + 1)) for t, c in enumerate(cohorts))
    most = most_rounds_of_a_site(3, 2, 7)
    assert np.bincount(np.concatenate(cohorts)).max() <= most
    with pytest.raises(DPFedCError):
        agreement.cohort("lloyd", 8)


def test_the_terms_state_the_computed_epsilon_and_every_stage():
    agreement = agreed("dp-fedc", epsilon=3.0, noise="secure")
    text = "\n".join(terms(agreement))
    epsilon = plan_epsilon(agreement.privacy)
    assert f"epsilon {epsilon:.0f}, delta 0.0001" in text
    for words in ("record", "zero-out", "local", "university", "secure:"):
        assert words in text
    assert agreement.digest in text.replace(" ", "")
    assert max(map(len, terms(agreement)[-1].split())) < 10  # a line ends between words
    for release in agreement.privacy.releases:
        assert f": {release.stage} (" in text
    assert "SIMULATED" in "\n".join(terms(replace(agreement, noise="simulated")))


def test_terms_do_not_repeat_what_is_merely_claimed():
    agreement = with_noise(agreed(), 0.5)
    with pytest.raises(InvalidInput, match="must have noise multiplier"):
        terms(agreement)


@pytest.mark.parametrize("bound", [1e-150, 1e150])
def test_a_bound_that_cannot_be_squared_is_refused_before_anything_is_charged(bound):
    with pytest.raises(InvalidInput, match="the declared bound must be from 1e-100 to"):
        agreed(settings={"norm_bound": bound}).verified()
    assert agreed(settings={"norm_bound": 1e-90}).verified()


@pytest.mark.parametrize(
    "wrong",
    [{"clip_norm": 1e-200}, {"constant_feature": 1e200}, {"membership_steps": 10**9},
     {"n_rounds": 10**9}],
)  # fmt: skip
def test_settings_under_which_every_round_would_fail_are_refused(wrong):
    with pytest.raises(InvalidInput, match="must be"):
        agreed("dp-fedc", settings=wrong)


def test_operators_read_what_was_chosen():
    told = " ".join(terms(agreed("dp-fedc", settings={"clip_norm": 0.5})))
    assert "Settings: n_rounds 3, clip_norm 0.5." in told


def test_no_setting_hides_those_after_it():
    start = np.arange(300.0).reshape(3, 100).tolist()
    features = tuple(f"x{i}" for i in range(100))
    settings = {"init": start, "membership_steps": 77}
    told = " ".join(terms(agreed("dp-fedc", settings=settings, features=features)))
    assert "membership_steps 77" in told
    assert f"... ({len(str(start)):,} letters)" in told


def read_columns(agreement):
    (paragraph,) = (text for text in terms(agreement) if text.startswith("Reads: "))
    return paragraph.removeprefix("Reads: the ").removesuffix(
        " of your table, and nothing else of it."
    )


def test_operators_see_every_column():
    names = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(200)]
    assert read_columns(agreed(features=tuple(names))) == f"columns {', '.join(names)}"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([f"p{i}" for i in range(784)], "p0 to p783 (784)"),
        (["age", *(f"p{i}" for i in range(8, 12)), "b1"], "age, p8 to p11 (4), b1"),
        ([f"p{i:02}" for i in range(98, 103)], "p98 to p102 (5)"),
        ([f"p{i:02}" for i in range(8, 12)], "p08 to p11 (4)"),
        (["p1", "p2", "p3"], "p1, p2, p3"),
        (["p1", "p2", "p3", "p5", "p6", "q7", "q8"], "p1, p2, p3, p5, p6, q7, q8"),
        (["p01", "p2", "p3", "p4"], "p01, p2, p3, p4"),
        (["p4", "p3", "p2", "p1"], "p4, p3, p2, p1"),
        (["1", "2", "3", "4", "05"], "1 to 4 (4), 05"),
    ],
)
def test_columns_with_consecutive_numbers_are_told_as_a_range(names, told):
    assert read_columns(agreed(features=tuple(names))) == f"columns {told}"


def test_columns_of_a_schema_are_told_together_only_if_the_same_is_read_of_them():
    columns = [{"name": f"p{i}", "kind": "number", "range": [0, 16 if i < 5 else 8]}
               for i in range(10)]  # fmt: skip
    schema = Schema.of({"column": [*columns, {"name": "s", "kind": "category", "values": ["y"]}]})
    agreement = agreed("dp-fedc", schema=schema, features=schema.features)
    told = read_columns(agreement)
    assert told == "columns p0 to p4 (5) (0 to 16), p5 to p9 (5) (0 to 8), s (y)"


def test_terms_move_no_cursor():
    schema = Schema.of({"person": "id\x1b[2J\r", "column": [
        {"name": "a", "kind": "number", "range": [0, 1]}]})  # fmt: skip
    agreement = agreed("dp-fedc", schema=schema, features=schema.features, unit="person")
    assert all(paragraph.isprintable() for paragraph in terms(agreement))


def test_an_agreement_for_persons_is_planned_again_for_persons():
    agreement = agreed(unit="person", sites_per_person=2)
    plan = agreement.privacy
    assert (plan.unit, plan.sites_per_person) == ("person", 2)
    assert agreement.verified() == agreement.digest
    assert Agreement.from_json(agreement.to_json()) == agreement
    assert agreed().digest != agreement.digest
    assert "sites_per_person" not in agreed().to_json()
    # As much noise as a person at one site needs is too little, and a site sees it.
    less = replace(agreement, privacy=replace(agreed().privacy, unit="person", sites_per_person=2))
    with pytest.raises(InvalidInput, match="must have noise multiplier"):
        less.verified()
    more = replace(agreement, privacy=replace(plan, sites_per_person=1))
    with pytest.raises(InvalidInput, match="must have noise multiplier"):
        more.verified()


def test_terms_for_persons():
    text = "\n".join(terms(agreed(unit="person", sites_per_person=2, noise="secure", epsilon=3.0)))
    assert "berlin (120 persons)" in text
    assert "Protected: every single person, with rows at up to 2 sites: all of their rows" in text
    assert "the same data with all rows of that person left blank" in text
    assert "for that epsilon is 6, twice as much" in text
    assert "its lifetime cap is for this site alone" in text
    text = "\n".join(terms(agreed(unit="person")))
    assert "A person with rows at several sites has less protection" in text
    text = "\n".join(terms(agreed()))
    assert "every single record (zero-out neighbours: the same data with that record left" in text
    assert "A person with several records has less protection" in text


def test_a_plan_in_toml_may_be_for_persons():
    def proposed(more):
        text = TOML.replace("epsilon = 8.0", f"epsilon = 8.0\n{more}")
        return proposed_by_toml(text, sites=SITES, receipt_key=public_key(KEY)).privacy

    assert proposed("").unit == "record"
    plan = proposed('unit = "person"')
    assert (plan.unit, plan.sites_per_person) == ("person", 1)
    plan = proposed('unit = "person"\nsites_per_person = 3')
    assert (plan.unit, plan.sites_per_person) == ("person", 3)
    for wrong in (
        'unit = "visit"',
        "sites_per_person = 2",
        'unit = "person"\nsites_per_person = 4',
    ):
        with pytest.raises(InvalidInput, match=r"unit must be|sites_per_person must be"):
            proposed(wrong)
