"""What a site asks of a run before it takes part, and what accepted runs reserve."""

import threading

import pytest

from dpfedc.deployment import admission, control
from dpfedc.deployment.admission import require_affordable, reservations
from dpfedc.deployment.control import opened
from dpfedc.deployment.coordinator import Coordinator
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.offered_runs import AGREEMENT
from dpfedc.deployment.site_service import SiteService
from dpfedc.errors import InvalidInput
from dpfedc.privacy.ledger import BasicCap, GaussianCap, Ledger
from support.deployment import KEY, SIZES
from support.site_services import (
    DeskTransport,
    agreement_with,
    first_request,
    offered,
    site_folder,
)

KINDS = pytest.mark.parametrize("kind", [GaussianCap, BasicCap])
"""The runs of these tests promise epsilon 50 at delta 1e-4. Two fit into the larger caps."""
SMALL = {GaussianCap: GaussianCap(60.0, 1e-4), BasicCap: BasicCap(60.0, 2e-4)}
LARGE = {GaussianCap: GaussianCap(90.0, 1e-4), BasicCap: BasicCap(100.0, 2e-4)}


def runs_at(folder):
    return [agreement_with([folder], seed=seed) for seed in (1, 2)]


def asked(service, agreement):
    return opened(service.reply(control.offer(agreement)))


@KINDS
@pytest.mark.parametrize("accept", [True, False])
def test_a_second_run_that_would_starve_the_first_is_refused(tmp_path, kind, accept):
    """Each alone fits into the cap; neither has charged anything yet."""
    folder = site_folder(tmp_path, "berlin", cap=SMALL[kind])
    first, second = runs_at(folder)
    service = SiteService(folder, accept=accept, allow_simulated=True)
    service.reply(control.offer(first))
    if not accept:
        with Ledger.open(folder.ledger) as ledger:
            admission.accept(folder, first, ledger)
    refusal = asked(service, second)
    assert f"reserved for the accepted run {first.digest[:12]} (study)" in refusal.reason
    assert folder.state(second.digest) == "unknown"
    with Ledger.open(folder.ledger) as ledger, pytest.raises(InvalidInput, match="is reserved for"):
        admission.accept(folder, second, ledger)
    assert folder.state(second.digest) == "unknown"
    folder.cancel(first.digest)
    assert offered(service, second) == accept
    service.close()


@KINDS
def test_two_runs_that_fit_come_to_their_ends_side_by_side(tmp_path, kind):
    folders = [site_folder(tmp_path, name, cap=LARGE[kind]) for name in SIZES]
    transport = DeskTransport(folders, accept=True)
    runs = [agreement_with(folders, seed=seed) for seed in (1, 2)]
    for agreement in runs:
        assert all(offered(service, agreement) for service in transport.services.values())
    third = agreement_with(folders, seed=3)
    refusal = asked(transport.services["berlin"], third)
    assert "accepted runs" in refusal.reason
    heads = KeptHeads(tmp_path)
    inner, outer = (
        Coordinator(run, transport, tmp_path / run.digest, key=KEY, heads=heads) for run in runs
    )
    exchange, sent = transport.exchange, []

    def with_another_run_in_between(requests, deadline_s):
        sent.append(requests)
        if len(sent) == 2:
            assert inner.run()
        return exchange(requests, deadline_s)

    transport.exchange = with_another_run_in_between
    assert outer.run()
    assert len(sent) == sum(run.plan.n_rounds for run in runs)
    transport.close()


@KINDS
def test_what_is_charged_is_no_longer_reserved(tmp_path, kind):
    folder = site_folder(tmp_path, "berlin", cap=LARGE[kind])
    agreement = runs_at(folder)[0]
    service = SiteService(folder, accept=True, allow_simulated=True)
    assert offered(service, agreement)
    sums = []
    with Ledger.open(folder.ledger) as ledger:
        before = require_affordable(agreement, ledger, folder)
        for _ in range(2):
            (held,) = reservations(folder, ledger)
            totals = ledger.totals()
            sums.append([float(held.amounts[n]) + totals.spent[n] for n in totals.limits])
            service.reply(first_request(agreement))
        after = require_affordable(agreement, ledger, folder)
    assert sums[0] == pytest.approx(sums[1])
    assert after == pytest.approx(before)
    service.close()


@pytest.mark.parametrize("end", ["finished", "cancelled", "declined", "another unit", "unreadable"])
def test_a_run_that_can_charge_nothing_more_reserves_nothing(tmp_path, end):
    folder = site_folder(tmp_path, "berlin")
    agreement = runs_at(folder)[0]
    folder.keep(agreement)
    folder.accept(agreement.digest)
    with Ledger.open(folder.ledger) as ledger:
        assert [held.run for held in reservations(folder, ledger)] == [agreement.digest]
        if end == "another unit":
            ledger.change_unit("person", rows_per_person=1)
        elif end == "cancelled":
            folder.cancel(agreement.digest)
        else:
            name = {"finished": "model.npz", "declined": "declined", "unreadable": AGREEMENT}[end]
            (folder.run(agreement.digest) / name).write_text("{}")
        assert reservations(folder, ledger) == []


def test_the_epsilon_afterwards_counts_all_that_is_accepted(tmp_path):
    folder = site_folder(tmp_path, "berlin", cap=BasicCap(1000.0, 1e-3))
    first, second = runs_at(folder)
    with Ledger.open(folder.ledger) as ledger:
        alone = require_affordable(second, ledger, folder)
        admission.accept(folder, first, ledger)
        both = require_affordable(second, ledger, folder)
    assert both == pytest.approx(2 * alone)


def test_of_two_acceptances_at_once_one_is_refused(tmp_path):
    """Two processes that both find enough left must not both take it."""
    folder = site_folder(tmp_path, "berlin", cap=SMALL[GaussianCap])
    start, refused = threading.Barrier(2), []

    def accept(agreement):
        with Ledger.open(folder.ledger) as ledger:
            start.wait()
            try:
                admission.accept(folder, agreement, ledger)
            except InvalidInput as error:
                refused.append(str(error))

    threads = [threading.Thread(target=accept, args=(run,)) for run in runs_at(folder)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(refused) == 1
    assert sum(folder.is_accepted(run) for run in folder.offered()) == 1


def test_a_run_is_declined_while_it_waits_and_cancelled_once_it_is_accepted(tmp_path):
    folder = site_folder(tmp_path, "berlin")
    first, second = runs_at(folder)
    folder.keep(first)
    with pytest.raises(InvalidInput, match=r"must be accepted to be cancelled, got .*, offered"):
        folder.cancel(first.digest)
    folder.decline(first.digest)
    folder.keep(second)
    folder.accept(second.digest)
    with pytest.raises(InvalidInput, match=r"must wait to be declined, got .*, accepted"):
        folder.decline(second.digest)
    folder.cancel(second.digest)
    assert [folder.state(run.digest) for run in (first, second)] == ["declined", "cancelled"]


def test_a_run_that_lost_rows_have_closed_reserves_nothing(tmp_path):
    folder = site_folder(tmp_path, "berlin")
    agreement = runs_at(folder)[0]
    service = SiteService(folder, accept=True, allow_simulated=True)
    assert offered(service, agreement)
    with Ledger.open(folder.ledger) as ledger:
        assert [held.run for held in reservations(folder, ledger)] == [agreement.digest]
        ledger.recover(None, plans={agreement.digest: agreement.privacy})
        assert not reservations(folder, ledger)
    service.close()
