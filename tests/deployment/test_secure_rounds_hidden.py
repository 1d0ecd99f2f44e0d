"""What a server can get of a deployed round with secure aggregation: the sum, once, or nothing.

A server that does not keep to the protocol asks real sites with real ledgers. Each protection is
also taken out, to see that the very same attack succeeds then. The protocol alone, with more
attacks: test_secure_attacks.py.
"""

import base64
import json
import shutil
from dataclasses import replace
from itertools import chain, combinations
from queue import Queue
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpfedc.deployment import secure_rounds, site_run
from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.deployment.coordinator import Coordinator
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.keys import read_certificate
from dpfedc.deployment.keys import signing_key as key_in
from dpfedc.deployment.messages import STEPS, Answer, Refusal, Request, StepAnswer
from dpfedc.deployment.round_calls import TooFewAnswers
from dpfedc.deployment.round_secrets import GONE
from dpfedc.deployment.secure_aggregation import shamir, site_round
from dpfedc.deployment.secure_aggregation.masks import context_of, survivors_content
from dpfedc.deployment.secure_aggregation.site_round import SiteRound
from dpfedc.deployment.secure_steps import SITES, told_by, told_to
from dpfedc.deployment.site_run import LEDGER_TROUBLE, SiteRun
from dpfedc.engine.backend import RoundLost
from dpfedc.engine.rounds import StageLost
from dpfedc.errors import Refused, RoundSpent
from dpfedc.privacy.ledger import Ledger, Unusable
from support.deployment import KEY, SIZES, MemoryTransport, agreed
from support.lost_rounds import Crashed
from support.masked_runs import (
    NAMES,
    OneRound,
    counts,
    lloyd,
    masked,
    sites_in,
    study,
)
from support.secure_attackers import looks_uniform
from support.site_services import DeskTransport, key_of, result, site_folder, words

PLACE = ("lloyd", 1)
WIDE = {
    "features": tuple(f"feature {i}" for i in range(100)),
    "settings": (("n_clusters", 40), *lloyd(1)),
}
"""A run whose uploads have 4,040 numbers."""


@pytest.fixture(autouse=True)
def dice(monkeypatch):
    """Let all keys and seeds be the same in every test: no statistical test fails by chance."""
    rng = np.random.default_rng(20240917)

    def thrown_again():
        nonlocal rng
        rng = np.random.default_rng(20240917)

    def new_secret():
        return X25519PrivateKey.from_private_bytes(rng.bytes(32))

    def below(most):
        return int.from_bytes(rng.bytes(40), "little") % most

    def some_bytes(n):
        return rng.bytes(n)

    monkeypatch.setattr(site_round, "new_secret", new_secret)
    monkeypatch.setattr(site_round, "os", SimpleNamespace(urandom=some_bytes))
    monkeypatch.setattr(shamir, "secrets", SimpleNamespace(randbelow=below))
    attempts = SimpleNamespace(token_hex=lambda n: some_bytes(n).hex())
    monkeypatch.setattr(secure_rounds, "secrets", attempts)
    return thrown_again


@pytest.fixture
def bare(monkeypatch):
    """Return what sites hide, by round and site's number: the upload before its masks."""
    found, right = {}, SiteRound.masked

    def watched(self, values):
        found.setdefault(self.context, {})[self.roster.site] = np.array(values)
        return right(self, values)

    monkeypatch.setattr(SiteRound, "masked", watched)
    return found


def wide_sites(folder, n_sites=4):
    """Return sites with records of a hundred features."""
    agreement, rng = study(n_sites, spare_rounds=0, **WIDE), np.random.default_rng(0)
    transport = sites_in(folder, agreement)
    transport.X = {s.name: rng.normal(size=(s.n_records, 100)) for s in agreement.sites}
    return transport


# What the server sees


def seen_by_server(transport):
    """Return all words of 8 bytes, from every byte on, in all that reaches the server's side.

    All messages and all files of its folder; what is in base64 there is opened.
    """
    blobs = [data for sent in transport.sent for data in sent.values()]
    blobs += [answer for *_, answer in transport.answered]
    files = [*(transport.folder / "run").iterdir(), transport.folder / "heads.json"]
    for file in files:
        content = file.read_bytes()
        blobs.append(content)
        if file.suffix == ".json" and b'"requests"' in content:
            blobs += map(base64.b64decode, json.loads(content)["requests"].values())
    assert len(files) == 8
    joined = b"".join(blobs)
    cut = (joined[start : len(joined) - (len(joined) - start) % 8] for start in range(8))
    return np.unique(np.concatenate([np.frombuffer(part, "<u8") for part in cut]))


def hidden_words(uploads, least, unit):
    """Return what the server must not see of a round: all sums of fewer uploads than may be in one.

    As grid units and as floats. Numbers of few bytes could come by chance.
    """
    found = []
    for n in range(1, least):
        for sites in combinations(uploads, n):
            total = np.sum([uploads[site] for site in sites], axis=0, dtype=np.uint64)
            floats = total.view(np.int64) * unit
            found += [total.ravel(), floats.ravel().view(np.uint64)]
    words = np.unique(np.concatenate(found))
    n_bytes = [len(set(word.tobytes())) for word in words]
    return words[np.array(n_bytes) > 4]


def share_seen(folder, bare):
    """Play a run of three rounds, and return how much of what is hidden the server sees.

    Uploads before their masks, and the same without their noise.
    """
    agreement = study(5, settings=lloyd(3))  # no bound is found in the garbage that is planted
    transport, hidden = sites_in(folder, agreement), {}
    transport.coordinator().run()
    for site, step, request, answer in transport.answered:
        if step == "upload":
            sent, unit = Request.from_bytes(request), Answer.from_bytes(answer).upload.unit
            context = context_of(sent.run, sent.stage, sent.t, sent.attempt)
            upload = bare[context][agreement.number_of(site)]
            (noise,) = transport.noise[site].drawn[sent.stage, sent.t]
            place = hidden.setdefault(context, ({}, {}, unit))
            place[0][site], place[1][site] = upload, upload - noise.view(np.uint64)
    assert len(hidden) == agreement.plan.n_rounds == 3
    least = agreement.privacy.min_survivors
    words = [hidden_words(part, least, unit) for *parts, unit in hidden.values() for part in parts]
    words = np.concatenate(words)
    assert len(words) > 3000
    return np.isin(words, seen_by_server(transport)).mean()


def test_no_upload_and_no_sum_of_few_is_in_any_message_or_file_of_the_server(
    tmp_path, bare, monkeypatch
):
    assert share_seen(tmp_path / "right", bare) == 0
    bare.clear()

    def without_masks(self, values):
        bare.setdefault(self.context, {})[self.roster.site] = np.array(values)
        self._done = "masked"
        return np.array(values)

    monkeypatch.setattr(SiteRound, "masked", without_masks)
    assert share_seen(tmp_path / "planted", bare) > 0.02, "planted: uploads without masks"


def test_uploads_and_all_sums_of_them_are_uniform_until_they_are_opened(tmp_path, bare):
    """The opened sum, and what lies under the masks, is not: its high bytes are alike."""
    transport = wide_sites(tmp_path)
    play = OneRound(transport, tmp_path / "server")
    play.prepared()
    uploads = [answer.upload.values for answer in play.uploaded().values()]
    parts = chain.from_iterable(combinations(uploads, n) for n in range(1, len(uploads) + 1))
    sums = [np.sum(part, axis=0, dtype=np.uint64) for part in parts]
    assert len(sums) == 15
    assert all(map(looks_uniform, sums))
    (hidden,) = bare.values()
    assert not any(map(looks_uniform, hidden.values()))
    values, _ = play.opened()
    assert not looks_uniform(values)
    np.testing.assert_array_equal(values, np.sum([*hidden.values()], axis=0, dtype=np.uint64))


# Requests of another kind


def asked(transport, site, request):
    """Return what a site replies to a request."""
    return transport.exchange({site: request.to_bytes()}, 1.0)[site]


def test_a_masked_run_answers_no_request_without_masks(tmp_path):
    """Such an upload would leave with a share of the noise, and nothing else to hide it."""
    transport = sites_in(tmp_path, study())
    play = OneRound(transport, tmp_path / "server")
    right = Request.from_bytes(play.prepared()["berlin"])
    plain = replace(right, arrays=play.arrays, attempt="")
    reply = asked(transport, "berlin", plain)
    assert reply.reason.startswith("an attempt's number must be in a request if uploads are masked")
    masks = [name for name in right.arrays if name.startswith("masks.")]
    assert len(masks) == 3
    for n in range(1, 4):
        for left_out in combinations(masks, n):
            arrays = {name: v for name, v in right.arrays.items() if name not in left_out}
            reply = asked(transport, "berlin", replace(right, arrays=arrays))
            assert isinstance(reply, Refusal)
            assert not reply.for_good
    assert asked(transport, "berlin", replace(right, attempt="00" * 16)).reason == GONE
    assert counts(transport, "berlin") == [set(), set(), set()]
    assert not transport.noise["berlin"].drawn
    assert isinstance(asked(transport, "berlin", right), bytes), "and nothing was spoilt by that"


def test_a_run_without_masks_has_one_step(tmp_path):
    agreement = agreed(noise="secure")
    transport = MemoryTransport(agreement, tmp_path)
    run, arrays = agreement.digest, {"origin": np.zeros(3)}
    for step in STEPS:
        for attempt in ("", "00" * 16):
            request = Request(run, "berlin", "bound", 1, arrays, step=step, attempt=attempt)
            if (step, attempt) != ("upload", ""):
                assert isinstance(asked(transport, "berlin", request), Refusal)
    assert not transport.released
    with transport.ledger("berlin") as ledger:
        assert not ledger.totals().stages
    request = Request(run, "berlin", "bound", 1, arrays)
    assert isinstance(asked(transport, "berlin", request), bytes)


def test_a_site_that_believes_the_request_how_the_run_is_masked_gives_its_sum_away(
    tmp_path, monkeypatch
):
    """Plant: the request says whether uploads are masked, and not the agreement."""
    transport = sites_in(tmp_path, study())
    play = OneRound(transport, tmp_path / "server")
    plain = Request(transport.agreement.digest, "berlin", *PLACE, play.arrays)
    monkeypatch.setattr(site_run, "require_step", lambda request, *, masked: None)
    assert asked(transport, "berlin", plain).reason == GONE, "there is a second protection"
    monkeypatch.setattr(Agreement, "is_masked", False)
    answer = Answer.from_bytes(asked(transport, "berlin", plain))
    (noise,) = transport.noise["berlin"].drawn[PLACE]
    exact = answer.upload.values - noise.view(np.uint64)
    np.testing.assert_array_equal(exact, play.exact(["berlin"]))
    z, share = (
        transport.agreement.privacy.of_stage("lloyd").noise_multiplier,
        transport.agreement.privacy.noise_of_site("lloyd"),
    )
    assert share < 0.6 * z, "all that hides it is a share of the noise"


# Once a round


@pytest.mark.parametrize("restarted", [False, True])
def test_there_is_no_second_upload_in_another_attempt(tmp_path, restarted):
    transport = sites_in(tmp_path, study())
    play = OneRound(transport, tmp_path / "server")
    play.prepared()
    assert len(play.uploaded()) == 5
    if restarted:
        transport.secrets.clear()
    play.prepared("second")
    replies = transport.exchange(play.requests, 1.0)
    spent = Refusal("round 1 of stage 'lloyd' was charged for another request", for_good=True)
    assert replies == dict.fromkeys(NAMES, spent)
    for site in NAMES:
        assert counts(transport, site) == [{PLACE}, {PLACE}, set()]
        assert len(transport.noise[site].drawn[PLACE]) == 1
    with pytest.raises(TooFewAnswers):
        play.opened()  # keys of the second attempt are no help with uploads of the first
    assert play.refused == dict.fromkeys(NAMES, PLANTS[0][3])


def test_a_ledger_that_is_put_back_lets_a_site_upload_twice(tmp_path):
    """Plant: the ledger forgets. It is the ledger that says what was done in a round."""
    transport = sites_in(tmp_path, study())
    play = OneRound(transport, tmp_path / "server")
    for site in NAMES:
        shutil.copy(tmp_path / f"{site}.ledger", tmp_path / f"{site}.backup")
    sums = []
    for attempt in ("first", "second"):
        play.prepared(attempt)
        play.uploaded()
        sums.append(play._secret(attempt).opened(play.requests, play.answers, {})[0])
        for site in NAMES:
            shutil.copy(tmp_path / f"{site}.backup", tmp_path / f"{site}.ledger")
            (tmp_path / f"{site}.ledger").chmod(0o600)
    assert {len(transport.noise[site].drawn[PLACE]) for site in NAMES} == {2}
    assert (sums[0].values != sums[1].values).any(), "two noises on one sum"


def signs_again(self, survivors):
    """Stand for `agreed` of a site that signs as often as it is asked."""
    self._survivors = self._members("the survivors", survivors, self._sharing)
    self._done = "agreed" if self._done == "masked" else self._done
    return self.sign(survivors_content(self.context, self._sharing, self._survivors))


def opens_again(self, signatures, *, persist):
    """Stand for `opened` of a site that gives its shares as often as it is asked."""
    self._require_agreed(signatures)
    persist()
    found = sorted(self._held.items())
    return {of: seed if of in self._survivors else key for of, (key, seed) in found}


PLANTS = [
    (SiteRound, "agreed", signs_again, "step 'agreed' of a round must come once, after 'masked'"),
    (SiteRound, "opened", opens_again, "step 'opened' of a round must come once, after 'agreed'"),
    (Ledger, "unmask", lambda *_: None, "round 1 of stage 'lloyd' was opened before, and is only"),
]
"""Three protections, one behind the other: what stands for it, and what it says."""


@pytest.mark.parametrize("n_planted", range(4))
def test_there_is_no_second_sum_of_a_round_to_subtract(tmp_path, bare, monkeypatch, n_planted):
    """The sum of all, and then that without oslo: the difference would be oslo's upload."""
    transport = sites_in(tmp_path, study())
    play = OneRound(transport, tmp_path / "server")
    for where, name, plant, _ in PLANTS[:n_planted]:
        monkeypatch.setattr(where, name, plant)
    play.prepared()
    play.uploaded()
    (hidden,) = bare.values()
    whole, _ = play.opened()
    np.testing.assert_array_equal(whole, np.sum([*hidden.values()], axis=0, dtype=np.uint64))
    if n_planted < len(PLANTS):
        with pytest.raises((TooFewAnswers, RoundLost)):
            play.opened(NAMES[:4], "second")
        said = PLANTS[n_planted][3]
        assert set(play.refused) == set(NAMES[:4])
        assert all(reason.startswith(said) for reason in play.refused.values())
        assert all(counts(transport, site)[2] == {PLACE} for site in NAMES)
    else:
        without, summed = play.opened(NAMES[:4], "second")
        assert summed == list(NAMES[:4])
        np.testing.assert_array_equal(whole - without, hidden[4])


def test_after_a_restart_a_site_neither_signs_nor_opens_in_the_round(tmp_path):
    transport = sites_in(tmp_path, study())
    play = OneRound(transport, tmp_path / "server")
    play.prepared()
    play.uploaded()
    play.opened()
    sent = {step: r for site, step, r, _ in transport.answered if site == "berlin"}
    transport.secrets.clear()
    gone = Refusal(GONE, for_good=True)
    for step in ("shares", "agree", "open"):
        assert transport.exchange({"berlin": sent[step]}, 1.0)["berlin"] == gone
    upload = transport.exchange({"berlin": sent["upload"]}, 1.0)["berlin"]
    assert upload == play.answers["berlin"].to_bytes(), "what is in its ledger is sent again"
    assert isinstance(transport.exchange({"berlin": sent["keys"]}, 1.0)["berlin"], bytes)
    for step in ("agree", "open"):
        reply = transport.exchange({"berlin": sent[step]}, 1.0)["berlin"]
        assert "must come once" in reply.reason, "new keys are not those of the round"


def other_signatures(transport, site):
    """Return a site's request to open, and one with the signatures of others than it had."""
    found = {}
    for _, step, _, answer in transport.answered:
        if step == "agree":
            found |= told_by("agree", StepAnswer.from_bytes(answer).arrays)
    (data,) = {r for who, step, r, _ in transport.answered if (who, step) == (site, "open")}
    chosen = sorted(found)[1:]
    arrays = told_to("agree", chosen, [found[n] for n in chosen])
    return data, replace(Request.from_bytes(data), arrays=arrays)


@pytest.mark.parametrize("restarted", [False, True])
def test_another_request_to_open_is_refused_and_the_same_is_answered_the_same(tmp_path, restarted):
    transport = sites_in(tmp_path, study())
    play = OneRound(transport, tmp_path / "server")
    play.prepared()
    play.uploaded()
    play.opened()
    same, other = other_signatures(transport, "berlin")
    (answer,) = {a for who, step, _, a in transport.answered if (who, step) == ("berlin", "open")}
    assert transport.exchange({"berlin": same}, 1.0) == {"berlin": answer}
    if restarted:
        transport.secrets.clear()
    reply = asked(transport, "berlin", other)
    assert reply.reason == (GONE if restarted else PLANTS[1][3])
    with transport.ledger("berlin") as ledger, pytest.raises(RoundSpent, match="was opened before"):
        ledger.unmask(transport.agreement.digest, *PLACE, "another request")
    assert counts(transport, "berlin")[2] == {PLACE}


def until_open(folder):
    """Return sites that have made their uploads and agreed, and a request to open one of them."""
    transport = sites_in(folder, study())
    play, kept = OneRound(transport, folder / "server"), {}
    play.prepared()
    play.uploaded()

    def keep(site, step, request):
        if step == "open":
            kept[site] = request
            return "silent"
        return None

    transport.before = keep
    with pytest.raises(TooFewAnswers):
        play.opened()
    transport.before = lambda *_: None
    return transport, kept["berlin"]


def test_no_share_leaves_before_it_is_written_down(tmp_path, monkeypatch):
    """The disk is full; then it is not, and the same request is answered."""
    transport, request = until_open(tmp_path)

    def full(*_):
        raise Unusable("no space at /a/path")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "unmask", full)
        assert transport.exchange({"berlin": request}, 1.0)["berlin"] == Refusal(LEDGER_TROUBLE)
    assert counts(transport, "berlin")[2] == set()
    assert isinstance(transport.exchange({"berlin": request}, 1.0)["berlin"], bytes)
    assert counts(transport, "berlin")[2] == {PLACE}


@pytest.mark.parametrize("written", [False, True])
def test_a_site_that_is_killed_while_it_writes_gives_no_share(tmp_path, monkeypatch, written):
    """Before the row is on the disk, or after: it has forgotten its shares either way."""
    transport, request = until_open(tmp_path)
    unmask, n_before = Ledger.unmask, len(transport.answered)

    def killed(*args):
        if written:
            unmask(*args)
        raise Crashed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "unmask", killed)
        with pytest.raises(Crashed):
            transport.exchange({"berlin": request}, 1.0)
    transport.restart("berlin")
    reply = transport.exchange({"berlin": request}, 1.0)["berlin"]
    assert reply == Refusal(GONE, for_good=True)
    assert len(transport.answered) == n_before
    assert counts(transport, "berlin")[2] == ({PLACE} if written else set())


def test_a_site_that_writes_down_later_gives_shares_that_nobody_knows_of(tmp_path, monkeypatch):
    """Plant: shares leave, and the row is never written: the ledger would let it open again."""
    transport, request = until_open(tmp_path)
    right = SiteRound.opened
    monkeypatch.setattr(
        SiteRound, "opened", lambda self, s, *, persist: right(self, s, persist=lambda: None)
    )
    assert isinstance(transport.exchange({"berlin": request}, 1.0)["berlin"], bytes)
    with transport.ledger("berlin") as ledger:
        ledger.unmask(transport.agreement.digest, *PLACE, "another request")


def test_a_run_that_was_closed_since_rows_were_lost_opens_nothing(tmp_path):
    """Among them may be that the round was opened."""
    transport, request = until_open(tmp_path)
    with transport.ledger("berlin") as ledger:
        ledger.recover(None)
    reply = transport.exchange({"berlin": request}, 1.0)["berlin"]
    assert (reply.for_good, reply.of_run) == (True, True)
    assert counts(transport, "berlin")[2] == set()


# Other records, the same words


def said_in(folder, X, dice):
    """Return all that sites say in a round and in answer to wrong requests, but for uploads.

    Of uploads it is their lengths. Keys are the same whenever this is played.
    """
    dice()
    transport, said = sites_in(folder, study()), []
    transport.X = {name: X(values) for name, values in transport.X.items()}
    play = OneRound(transport, folder / "server")
    play.prepared()
    wrong = [play.requests[site] for site in NAMES]
    play.uploaded()
    play.opened()
    for _, step, request, answer in list(transport.answered):
        said.append((step, len(answer) if step == "upload" else answer))
        if step not in ("keys", "upload"):
            changed = Request.from_bytes(request)
            wrong.append(replace(changed, arrays={}).to_bytes())
            names = {**changed.arrays, SITES: np.arange(3, dtype=np.uint64)}
            wrong.append(replace(changed, arrays=names).to_bytes())
            wrong.append(replace(changed, attempt="11" * 16).to_bytes())
        wrong.append(replace(Request.from_bytes(request), attempt="").to_bytes())
        wrong.append(replace(Request.from_bytes(request), t=2).to_bytes())
    for killed in (False, True):
        if killed:
            transport.secrets.clear()
        for request in wrong:
            site = Request.from_bytes(request).site
            reply = transport.exchange({site: request}, 1.0)[site]
            upload = isinstance(reply, bytes) and Request.from_bytes(request).step == "upload"
            said.append(len(reply) if upload else reply)
    play.prepared("second")
    said.append(transport.exchange(play.requests, 1.0))
    return said


def unlike(X):
    """Return other records, of which every second is no number."""
    found = -1e9 * X
    found[::2] = np.nan
    return found


def test_steps_and_refusals_are_the_same_whatever_the_records_are(tmp_path, dice, monkeypatch):
    one, other = said_in(tmp_path / "one", np.copy, dice), said_in(tmp_path / "other", unlike, dice)
    assert len(one) > 200
    assert sum(isinstance(reply, Refusal) for reply in one) > 150
    assert one == other
    right = SiteRun._stepped

    def telling(self, request, name):
        if request.step == "agree" and not self.present.all():
            raise Refused("some records are no numbers, and are not in the sum")
        return right(self, request, name)

    monkeypatch.setattr(SiteRun, "_stepped", telling)
    with pytest.raises((TooFewAnswers, RoundLost)):  # planted: here it is plain to see
        said_in(tmp_path / "planted", unlike, dice)


# Runs side by side


@pytest.fixture
def folders(tmp_path):
    return [site_folder(tmp_path, name) for name in SIZES]


def agreement_among(folders, **changes):
    """Return an agreement between sites with their own keys; all are needed."""
    sites = []
    for folder in folders:
        key = key_in(read_certificate((folder.path / "site.pub").read_bytes()))
        sites.append(Site(folder.name, SIZES[folder.name], key_of(folder), key))
    agreement = masked(
        3, sites=tuple(sites), epsilon=100.0, settings=dict(lloyd(2)), min_survivors=3, **changes
    )
    for folder in folders:
        folder.keep(agreement)
        folder.accept(agreement.digest)
    return agreement


class Turns:
    """Lets coordinators ask the same sites by turns, one exchange each.

    They are threads, but sites work in the thread that calls `served`, one request at a time.
    """

    def __init__(self, desk):
        self.desk, self.asked, self.replies, self.ended = desk, {}, {}, {}

    def start(self, agreement, folder):
        run = agreement.digest
        self.asked[run], self.replies[run] = Queue(), Queue()

        def exchange(requests, deadline_s):
            self.asked[run].put(requests)
            return self.replies[run].get(timeout=60)

        def work():
            place = SimpleNamespace(exchange=exchange)
            heads = KeptHeads(folder.parent)
            try:
                self.ended[run] = Coordinator(agreement, place, folder, key=KEY, heads=heads).run()
            except Exception as error:  # told in the thread of the test
                self.ended[run] = error
            self.asked[run].put(None)

        Thread(target=work, daemon=True).start()

    def served(self):
        """Serve all until they are over; yield after each exchange."""
        left = list(self.asked)
        while left:
            for run in list(left):
                requests = self.asked[run].get(timeout=60)
                if requests is None:
                    left.remove(run)
                else:
                    self.replies[run].put(self.desk.exchange(requests, 1.0))
                    yield run


def side_by_side(folders, home, watch=lambda desk: None):
    """Return what two runs come to whose exchanges take turns, and the sites."""
    desk = DeskTransport(folders)
    watch(desk)
    turns, runs = Turns(desk), [agreement_among(folders, seed=seed) for seed in (1, 2)]
    for n, agreement in enumerate(runs):
        turns.start(agreement, home / f"run {n}")
    places = []
    for _ in turns.served():
        secrets = desk.services["berlin"]._secrets
        places.append({run: known._place for run, known in secrets.items()})
    return desk, runs, turns.ended, places


def test_runs_side_by_side_keep_their_secrets_apart(folders, tmp_path):
    desk, runs, ended, places = side_by_side(folders, tmp_path)
    truth = np.array([[0, 0, 0], [9, 0, 1], [0, 9, 2]])
    for agreement in runs:
        outcome = ended[agreement.digest]
        apart = np.linalg.norm(outcome.model.cluster_centers[:, None] - truth, axis=2)
        assert [entry.n_sites for entry in outcome.record.rounds] == [3, 3], outcome
        assert apart.min(axis=0).max() < 1.5
    assert len(places) == 20
    both = [place for place in places if len(place) == 2]
    assert len(both) == 19
    assert all(len({attempt for *_, attempt in place.values()}) == 2 for place in both)
    one, other = (agreement.digest for agreement in runs)
    for service in desk.services.values():
        assert service._secrets.keys() == {one, other}
        assert words(service.reply(result(runs[0]))) == {"stored": True}
        assert service._secrets.keys() == {other}, "those of a run that is over are gone"
        service._folder.cancel(other)
        service.reply(desk_request(runs[1], service._folder.name))
        assert not service._secrets, "and those of one that was cancelled"
    desk.close()


def desk_request(agreement, site):
    return Request(
        agreement.digest, site, "lloyd", 1, {}, step="keys", attempt="00" * 16
    ).to_bytes()


class OneForAll(dict):
    """Plant: the secrets of one run are those of all."""

    def setdefault(self, run, default):
        return super().setdefault("any", default)


def test_runs_that_share_secrets_lose_them(folders, tmp_path):
    def plant(desk):
        for service in desk.services.values():
            service._secrets = OneForAll()

    desk, _, ended, _ = side_by_side(folders, tmp_path, plant)
    lost = [
        outcome
        for outcome in ended.values()
        if isinstance(outcome, TooFewAnswers | StageLost)
        or any(entry.lost for entry in outcome.record.rounds)
    ]
    assert lost
    desk.close()
