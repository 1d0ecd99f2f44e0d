"""What is agreed on before uploads are added up in secret: who, how many, and at which price."""

import json
import math
from dataclasses import replace

import pytest

from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.keys import mark_of, public_key
from dpfedc.deployment.messages import MAX_HEAD, Request, unpacked
from dpfedc.deployment.proposal import proposed_by_toml
from dpfedc.deployment.secure_aggregation.circle import least_survivors
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.terms import pins_in_words, terms
from dpfedc.errors import InvalidInput, Refused
from dpfedc.privacy.accountant import plan_epsilon
from dpfedc.privacy.ledger import BasicCap, GaussianCap, Ledger
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.privacy.statement import number
from support.deployment import KEY
from support.masked_runs import MaskedTransport, masked, roster, signing_key
from support.site_services import site_folder

SHORT = {"norm_bound": 12.0, "n_rounds": 1}
"""One stage of one round: nothing is planned that a test does not look at."""


@pytest.fixture(scope="module")
def agreement():
    return masked(4)


def shared(agreement, **changes):
    """Return the agreement with another privacy plan."""
    return replace(agreement, privacy=replace(agreement.privacy, **changes))


def with_keys(agreement, *keys):
    """Return the agreement with other signing keys of the first sites."""
    others = agreement.sites[len(keys) :]
    sites = [replace(s, signing_key=k) for s, k in zip(agreement.sites, keys, strict=False)]
    return replace(agreement, sites=(*sites, *others))


# What is no agreement


def test_noise_that_anyone_can_draw_again_is_refused(agreement):
    with pytest.raises(InvalidInput, match="noise must be secure for secure aggregation, got sim"):
        replace(agreement, noise="simulated")


@pytest.mark.parametrize("n_keys", [1, 4])
def test_every_site_must_have_a_signing_key(agreement, n_keys):
    with pytest.raises(InvalidInput, match="each site must have a signing_key of its own"):
        with_keys(agreement, *[None] * n_keys)


def test_no_two_sites_have_one_signing_key(agreement):
    """Whoever has it would sign for both."""
    first = agreement.sites[0].signing_key
    with pytest.raises(InvalidInput, match="each site must have a signing_key of its own"):
        with_keys(agreement, first, first)


@pytest.mark.parametrize("key", ["", "00" * 31, "00" * 33, "0G" * 32, "AB" * 32, 7])
def test_a_signing_key_is_32_bytes_in_digits(key):
    with pytest.raises(InvalidInput, match="signing_key must be 64 hexadecimal digits"):
        Site("berlin", 60, signing_key=key)


@pytest.mark.parametrize("n_sites", [4, 5, 12])
@pytest.mark.parametrize("colluding", [0, 1, 2])
def test_two_sets_of_survivors_must_have_an_honest_site_in_common(n_sites, colluding):
    """Of two sets of K_min there are 2 K_min - K in both: more than collude."""
    needed = next(k for k in range(1, n_sites + 1) if 2 * k - n_sites > colluding)
    assert needed == (n_sites + colluding) // 2 + 1
    terms = {"colluding_sites": colluding, "min_survivors": needed}
    least = masked(n_sites, "federated-k-means", **terms)
    assert least.privacy.min_survivors == needed
    words = f"min_survivors must be from {needed} to {n_sites} for {n_sites} sites with {colluding}"
    with pytest.raises(InvalidInput, match=f"{words} colluding, got {needed - 1}"):
        shared(least, min_survivors=needed - 1)


def test_the_number_of_survivors_must_be_said(agreement):
    with pytest.raises(InvalidInput, match="min_survivors must be a number for secure aggregation"):
        shared(agreement, min_survivors=None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colluding_sites": 2}, "min_survivors must be from 4 to 4 for 4 sites with 2 colluding"),
        ({"colluding_sites": 3}, "min_survivors must be from 4 to 4, got 3"),
        ({"colluding_sites": 4, "min_survivors": 4}, "colluding_sites must be from 0 to 3, got 4"),
        ({"min_survivors": 5}, "min_survivors must be from 2 to 4, got 5"),
        ({"colluding_sites": -1}, "colluding_sites must be from 0 to 3, got -1"),
    ],
)
def test_more_colluding_sites_than_a_sum_can_bear_are_refused(agreement, changes, words):
    with pytest.raises(InvalidInput, match=words):
        shared(agreement, **changes)


def test_all_but_one_site_may_collude_if_none_drops_out(agreement):
    worst = shared(agreement, colluding_sites=3, min_survivors=4)
    assert worst.privacy.honest_shares(4) == 1


@pytest.mark.parametrize("colluding", [0, 1])
def test_rounds_of_fewer_sites_are_held_to_the_same(colluding):
    """Of three sites in a round all must survive, if three of the six in the run must."""
    terms = {"colluding_sites": colluding, "min_survivors": 3}
    made = masked(6, settings={**SHORT, "sites_per_round": 3}, **terms)
    circle = made.circle("lloyd", 1)
    assert (len(circle.sites), circle.min_survivors) == (3, 3)
    assert made.least_answers(3) == 3
    fewer = {**terms, "min_survivors": least_survivors(3, colluding) - 1}
    if fewer["min_survivors"] > colluding:
        with pytest.raises(InvalidInput, match="min_survivors must be from"):
            masked(6, settings={**SHORT, "sites_per_round": 3}, **fewer)


def test_a_site_alone_has_no_sum_to_hide_in():
    for n_sites, per_round in ((1, 1), (4, 1)):
        settings = {**SHORT, "sites_per_round": per_round}
        with pytest.raises(InvalidInput, match="must be over two sites or more"):
            masked(n_sites, colluding_sites=0, min_survivors=1, settings=settings)


def test_two_sites_can_hide_from_the_server_alone(tmp_path):
    both = masked(2, colluding_sites=0, min_survivors=2, settings=SHORT)
    assert both.circle("lloyd", 1).n_signatures == 2
    assert len(MaskedTransport(both, tmp_path).coordinator().run().record.rounds) == 1


# Its identity


def test_json_brings_back_the_same_agreement(agreement):
    again = Agreement.from_json(agreement.to_json())
    assert again == agreement
    assert again.digest == agreement.digest
    assert again.is_masked
    assert again.verified() == agreement.digest


def test_the_roster_is_part_of_the_identity(agreement):
    """A server that tells two sites different keys cannot have them accept the same run."""
    digests = {agreement.digest}
    for i, site in enumerate(agreement.sites):
        other = signing_key(f"impostor of {site.name}"[:32]).public_key().public_bytes_raw().hex()
        keys = [s.signing_key for s in agreement.sites]
        keys[i] = other
        digests.add(with_keys(agreement, *keys).digest)
        marked = replace(site, key=mark_of(site.signing_key))
        sites = (*agreement.sites[:i], marked, *agreement.sites[i + 1 :])
        digests.add(replace(agreement, sites=sites).digest)
        with pytest.raises(InvalidInput, match=f"signing_key of {site.name} must be of its key"):
            replace(site, key="ab" * 16)
    turned = replace(agreement, sites=agreement.sites[::-1])
    more = shared(agreement, min_survivors=4)
    fewer = shared(agreement, colluding_sites=0)
    digests |= {turned.digest, more.digest, fewer.digest}
    assert len(digests) == 1 + 2 * len(agreement.sites) + 3


@pytest.mark.parametrize(
    "change",
    [
        {"noise": "simulated"},
        {"privacy": {"min_survivors": 2}},
        {"privacy": {"min_survivors": None}},
        {"privacy": {"colluding_sites": 2}},
        {"privacy": {"trust": "trusted-server"}},
        {"sites": {"signing_key": None}},
        {"sites": {"signing_key": "11" * 32}},
    ],
)
def test_what_is_no_agreement_is_none_as_json_either(agreement, change):
    content = json.loads(agreement.to_json())
    if "sites" in change:
        for site in content["sites"][:2]:
            site.update(change["sites"])
    else:
        content["privacy"].update(change.get("privacy", {}))
        content.update({k: v for k, v in change.items() if k != "privacy"})
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    with pytest.raises(InvalidInput, match="not an agreement"):
        Agreement.from_json(text)


def test_a_share_of_the_noise_follows_from_who_survives_for_certain_and_is_honest(agreement):
    """The sum needs the same noise; fewer who are sure to add to it must add more each."""
    z = agreement.privacy.of_stage("lloyd").noise_multiplier
    for survivors, colluding in ((3, 1), (4, 1), (3, 0), (4, 3)):
        plan = masked(4, min_survivors=survivors, colluding_sites=colluding).privacy
        assert plan.of_stage("lloyd").noise_multiplier == pytest.approx(z)
        share = z / math.sqrt(survivors - colluding)
        assert plan.noise_of_site("lloyd") == pytest.approx(share)


# How long messages are


def test_all_messages_of_a_run_with_many_sites_are_short_enough(tmp_path):
    """So few must survive that all sites are neighbours: messages are as long as they can be."""
    wide = masked(60, sites=roster(60, 6), min_survivors=least_survivors(60, 1), settings=SHORT)
    assert wide.circle("lloyd", 1).n_holders == 60
    transport = MaskedTransport(wide, tmp_path)
    transport.coordinator().run()
    n_numbers = (wide.max_message_bytes - 2 * MAX_HEAD) // 8
    longest = {}
    for _, step, *messages in transport.answered:
        for message in messages:
            assert len(message) <= wide.max_message_bytes
            head, arrays = unpacked(message)
            assert len(json.dumps(head)) < MAX_HEAD
            n_words = sum(values.size for values in arrays.values())
            longest[step] = max(longest.get(step, 0), n_words)
    assert longest.keys() == {"keys", "shares", "upload", "agree", "open"}
    assert len(transport.answered) == 5 * 60
    # Without their heads, of which there is room for two: the keys of all others are the longest.
    assert longest["shares"] == max(longest.values())
    assert 0.8 * n_numbers < longest["shares"] <= n_numbers


# The plan in TOML

TOML = """
[run]
name = "study"
coordinator = "university"
clusters = 3
features = ["age", "weight", "height"]
method = "federated-k-means"

[privacy]
epsilon = 8.0
delta = 1e-5
trust = "secure-aggregation"
# more

[rounds]
deadline = 30
"""


def planned(n_sites, more="", *, toml=TOML):
    text = toml.replace("# more", more)
    return proposed_by_toml(text, sites=roster(n_sites), receipt_key=public_key(KEY))


def test_a_plan_in_toml_says_how_many_survive_and_collude():
    made = planned(6, "min_survivors = 5\ncolluding_sites = 2")
    plan = made.privacy
    assert (plan.trust, plan.min_survivors, plan.colluding_sites) == ("secure-aggregation", 5, 2)
    assert made.noise == "secure"
    assert made.is_masked
    assert made.min_answers == made.least_answers(6) == 5
    assert all(site.signing_key for site in made.sites)
    assert made.verified() == made.digest


@pytest.mark.parametrize("n_sites", range(2, 41))
def test_by_default_one_site_may_collude_and_one_or_a_tenth_drop_out(n_sites):
    """As many as that, unless two sets of survivors could have no honest site in common."""
    made = planned(n_sites)
    plan = made.privacy
    assert plan.colluding_sites == 1
    allowed = [d for d in range(max(n_sites // 10, 1) + 1) if 2 * (n_sites - d) - n_sites > 1]
    assert n_sites - plan.min_survivors == max(allowed)
    assert made.least_answers(n_sites) == plan.min_survivors == made.min_answers


def test_by_default_the_fewest_sites_are_all_needed():
    drops = {n: n - planned(n).privacy.min_survivors for n in (2, 3, 4, 19, 20, 29, 30, 40)}
    assert drops == {2: 0, 3: 0, 4: 1, 19: 1, 20: 2, 29: 2, 30: 3, 40: 4}


def test_survivors_that_are_not_said_follow_from_who_may_collude():
    for colluding, survivors in ((0, 9), (1, 9), (6, 9), (7, 9), (8, 10), (9, 10)):
        plan = planned(10, f"colluding_sites = {colluding}").privacy
        assert (plan.min_survivors, plan.colluding_sites) == (survivors, colluding)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("colluding_sites = 4", "colluding_sites must be from 0 to 3, got 4"),
        ("colluding_sites = -1", "colluding_sites must be from 0 to 3, got -1"),
        ('colluding_sites = "one"', "colluding_sites must be a whole number from 0 to 3"),
        ("min_survivors = 5", "min_survivors must be from 3 to 4, got 5"),
        ("min_survivors = 2", "min_survivors must be from 3 to 4, got 2"),
        ("min_survivors = 3.5", "min_survivors must be a whole number"),
        ('noise = "simulated"', "noise must be secure for secure aggregation, got simulated"),
        ("survivors = 3", "must be one of epsilon, delta, trust, min_survivors, colluding_sites"),
    ],
)
def test_a_plan_in_toml_that_cannot_be_agreed_on(more, words):
    with pytest.raises(InvalidInput, match=words):
        planned(4, more)


def test_min_survivors_says_how_many_answers_a_round_needs():
    toml = TOML.replace("deadline = 30", "min_answers = 2")
    with pytest.raises(InvalidInput, match="min_answers must not be given with secure aggregation"):
        planned(4, toml=toml)


@pytest.mark.parametrize("trust", ['trust = "local"', ""])
@pytest.mark.parametrize("more", ["min_survivors = 3", "colluding_sites = 0"])
def test_sites_that_add_all_noise_themselves_have_no_survivors_or_colluders(trust, more):
    toml = TOML.replace('trust = "secure-aggregation"', trust)
    name = more.split()[0]
    with pytest.raises(InvalidInput, match=f"{name} must go with trust secure-aggregation"):
        planned(4, more, toml=toml)
    made = planned(4, toml=toml)
    assert (made.privacy.trust, made.is_masked, made.min_answers) == ("local", False, 2)


@pytest.mark.parametrize("trust", ["trusted-server", "none"])
def test_no_other_trust_is_deployed(trust):
    with pytest.raises(InvalidInput, match="trust must be one of local, secure-aggregation, got"):
        planned(4, toml=TOML.replace("secure-aggregation", trust))


def test_a_number_of_survivors_that_is_none_is_refused_in_words():
    with pytest.raises(InvalidInput, match="min_survivors must be a whole number"):
        planned(4, 'min_survivors = "3"')


# What an operator reads


def paragraph(agreement, subject):
    (found,) = (text for text in terms(agreement) if text.startswith(f"{subject}: "))
    return found


def alone(plan):
    """Return the epsilon of a site whose own share of the noise is all that protects it."""
    releases = [replace(r, noise_multiplier=plan.noise_of_site(r.stage)) for r in plan.releases]
    unaided = PrivacyPlan(tuple(releases), plan.delta, "local", plan.n_sites)
    return plan_epsilon(unaided)


def test_terms_say_what_is_assumed_of_the_others():
    made = masked(5, epsilon=3.0, min_survivors=5, colluding_sites=2)
    said = paragraph(made, "Assumed")
    assert "in every round the uploads of at least 5 sites arrive" in said
    assert "at most 2 sites work with the server against the others" in said
    assert f"epsilon is {number(alone(made.privacy))}." in said
    assert alone(made.privacy) > 3.0
    assert "epsilon 3, delta 0.0001" in paragraph(made, "Promise")


@pytest.mark.parametrize(
    ("colluding", "words"), [(0, "no site works with"), (1, "at most one site works with")]
)
def test_terms_count_who_colludes(colluding, words):
    assert words in paragraph(masked(4, colluding_sites=colluding, settings=SHORT), "Assumed")


def test_terms_say_what_the_server_may_do(agreement):
    said = paragraph(agreement, "Server")
    for words in (
        "may deviate", "leave sites out", "tell them different things", "ask again",
        "one sum a round, of at least 3 sites", "It can stop the run or give out a wrong sum",
        "It could invent sites: these count as colluding ones",
    ):  # fmt: skip
        assert words in said
    assert paragraph(agreement, "Trust").startswith("Trust: secure-aggregation.")


def test_terms_name_all_keys_and_how_to_compare_them():
    said = paragraph(masked(4, settings=SHORT), "Keys")
    for site in roster(4):
        assert f"{site.name} {mark_of(site.signing_key)}" in said
    for words in (
        "came through the server", "compare it with the operators of the other",
        "not through the server", "Accepting pins these keys",
    ):  # fmt: skip
        assert words in said


def test_terms_show_the_keys_that_hide_uploads(agreement):
    """Or whoever compares the keys that are shown would not see that a server put its own there."""
    own = signing_key("server").public_key().public_bytes_raw().hex()
    assert paragraph(with_keys(agreement, own), "Keys") != paragraph(agreement, "Keys")


def test_terms_say_how_much_of_the_noise_is_this_sites_own(agreement):
    plan = agreement.privacy
    leaving = [text for text in terms(agreement) if text.startswith("Leaves the site")]
    assert len(leaving) == len(plan.releases)
    for release, said in zip(plan.releases, leaving, strict=True):
        share = release.noise_multiplier / math.sqrt(plan.min_survivors - plan.colluding_sites)
        together = plan.min_survivors - plan.colluding_sites
        words = f"noise multiplier {release.noise_multiplier:.3g} of {together} sites together"
        assert f"{words}, {share:.3g} of this one" in said
        assert "one noisy sum under masks of" in said
    assert "needs 3 answers" in paragraph(agreement, "Rounds")


def test_terms_of_sites_that_add_all_noise_themselves_say_nothing_of_masks():
    told = terms(planned(4, toml=TOML.replace("secure-aggregation", "local")))
    for subject in ("Assumed", "Server", "Keys"):
        assert not any(text.startswith(f"{subject}: ") for text in told)
    assert not any("masks" in text for text in told)


def test_an_operator_is_told_which_keys_nobody_has_compared(agreement):
    assert pins_in_words([]) == [
        "Pinned: the keys of all peers are those that were pinned here before."
    ]
    (warning,) = pins_in_words(agreement.sites[1:3])
    assert warning.startswith("Warning: the keys of geneva, lisbon are pinned here neither")


# What it costs


def charged(agreement, folder, cap):
    """Return what a site's ledger says after a whole run."""
    for site in agreement.sites:
        Ledger.create(
            folder / f"{site.name}.ledger", holding="w", cap=cap, least_colluding_sites=1
        ).close()
    transport = MaskedTransport(agreement, folder)
    transport.coordinator().run()
    with transport.ledger("berlin") as ledger:
        ledger.verify()
        return ledger.totals()


def test_a_charge_is_for_the_sum_and_another_for_what_is_left_if_all_others_collude(tmp_path):
    """Of the sum's variance a share is left: that of one of the K_min - c honest sites."""
    made = masked(5, min_survivors=5, colluding_sites=2)
    totals = charged(made, tmp_path, GaussianCap(1000.0, 1e-3))
    rounds = {"bound": 1, "lloyd": 3}
    assert {stage.stage: stage.n_charged for stage in totals.stages} == rounds
    assert {stage.trust for stage in totals.stages} == {"secure-aggregation"}
    z = {r.stage: r.noise_multiplier for r in made.privacy.releases}
    due = sum(n / z[stage] ** 2 for stage, n in rounds.items())
    assert totals.spent["inverse_squares"] == pytest.approx(due)
    assert totals.spent_if_others_collude["inverse_squares"] == pytest.approx((5 - 2) * due)
    assert totals.epsilon < totals.epsilon_if_others_collude


def test_a_cap_by_plans_is_charged_with_both_epsilons_of_the_plan(tmp_path):
    made = masked(4)
    totals = charged(made, tmp_path, BasicCap(200.0, 1e-3))
    assert totals.epsilon == pytest.approx(plan_epsilon(made.privacy))
    assert totals.epsilon_if_others_collude == pytest.approx(alone(made.privacy), rel=1e-3)


def test_a_ledger_that_counts_on_colluders_refuses_a_plan_without(tmp_path):
    releases = (PlannedRelease("lloyd", 1, 4, 1, 8.0),)
    plan = PrivacyPlan(releases, 1e-6, "secure-aggregation", 4, 4, 0)
    for least, fits in ((0, True), (1, False), (2, False)):
        path = tmp_path / f"{least}.ledger"
        cap = GaussianCap(10.0, 1e-5)
        with Ledger.create(path, holding="w", cap=cap, least_colluding_sites=least) as ledger:
            if fits:
                ledger.charge("r", plan, "lloyd", 1, "q", noise_multiplier=8.0)
                continue
            with pytest.raises(Refused, match=f"must tolerate {least} colluding sites, got 0"):
                ledger.charge("r", plan, "lloyd", 1, "q", noise_multiplier=8.0)
            tolerant = replace(plan, colluding_sites=least)
            ledger.charge("r", tolerant, "lloyd", 1, "q", noise_multiplier=8.0)
            # Where a site adds all noise itself nobody can take some off.
            local = replace(plan, trust="local", min_survivors=None)
            ledger.charge("s", local, "lloyd", 1, "q", noise_multiplier=8.0)


def test_a_site_whose_ledger_refuses_the_plan_charges_nothing(tmp_path):
    made = masked(4, colluding_sites=0, settings=SHORT)
    cap = GaussianCap(1000.0, 1e-3)
    path = tmp_path / "berlin.ledger"
    Ledger.create(path, holding="w", cap=cap, least_colluding_sites=1).close()
    transport = MaskedTransport(made, tmp_path)
    heard = []
    record = transport.coordinator(on_event=heard.append).run().record
    assert heard[-1].refused == {"berlin": "the plan must tolerate 1 colluding sites, got 0"}
    assert set(heard[-1].answered) == {"geneva", "lisbon", "madrid"}
    assert len(record.rounds) == 1
    with transport.ledger("berlin") as ledger:
        assert ledger.totals().stages == ()


def test_the_ledger_of_a_new_site_counts_on_a_colluding_one(tmp_path):
    folder = site_folder(tmp_path, "berlin")
    with Ledger.open(SiteFolder.open(folder.path).ledger) as ledger:
        assert ledger.opening.least_colluding_sites == 1


def test_requests_of_an_attempt_have_its_number(tmp_path):
    """It is in no file of a site, and another one each time."""
    made = masked(2, colluding_sites=0, settings=SHORT)
    numbers = set()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        transport = MaskedTransport(made, tmp_path / name)
        transport.coordinator().run()
        found = {Request.from_bytes(request).attempt for _, _, request, _ in transport.answered}
        assert len(found) == 1
        numbers |= found
    assert len(numbers) == 2
