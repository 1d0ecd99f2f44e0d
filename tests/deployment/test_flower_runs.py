"""A run from the coordinator's side: who must be there, who must accept, and what comes of it."""

import numpy as np
import pytest

from dpfedc.deployment import runs
from dpfedc.deployment.coordinator import Coordinator
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import DPFedCError, InvalidInput, NotFound
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.ledger import GaussianCap
from support.deployment import FEATURES, SIZES, by_site
from support.site_services import DeskTransport, key_of, site_folder

PLAN = f"""
[run]
name = "study"
coordinator = "university"
method = "dp-lloyd"
clusters = 3
features = {list(FEATURES)}

[privacy]
epsilon = 50
delta = 1e-4
noise = "simulated"

[rounds]
rounds = 2
deadline = 5
"""


def plan_file(server):
    path = server.path / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture
def server(tmp_path):
    return ServerFolder.create(tmp_path / "server", hosts=(), listen="127.0.0.1", port=8470)


@pytest.fixture
def sites(tmp_path, server):
    folders = [site_folder(tmp_path, name) for name in SIZES]
    for folder in folders:
        server.enrol(folder.name, (folder.path / "site.pub").read_text())
    return folders


@pytest.fixture
def transport(sites):
    made = DeskTransport(sites)
    yield made
    made.close()


@pytest.fixture
def agreement(server, transport):
    return runs.proposal(server, transport, plan_file(server), list(SIZES))


def test_a_proposal_has_the_sites_as_they_are_enrolled_and_declare_themselves(agreement, sites):
    assert {site.name: site.n_records for site in agreement.sites} == SIZES
    assert [site.key for site in agreement.sites] == [key_of(folder) for folder in sites]


def test_the_same_plan_with_the_same_sites_is_the_same_run(server, transport, agreement):
    assert (
        runs.proposal(server, transport, plan_file(server), list(SIZES)).digest == agreement.digest
    )


def test_a_site_that_is_silent_cannot_be_planned_with(server, transport):
    transport.away = {"geneva"}
    with pytest.raises(DPFedCError, match="geneva does not say how many records it has"):
        runs.proposal(server, transport, plan_file(server), list(SIZES))


def test_sites_that_do_not_come_are_named(transport):
    transport.away = {"geneva"}
    seen = []
    with pytest.raises(DPFedCError, match=r"no connection from geneva within 0\.1 seconds"):
        runs.await_sites(transport, list(SIZES), 0.1, on_change=seen.append)
    assert seen == [{"berlin", "lisbon"}]
    runs.await_sites(transport, ["berlin", "lisbon"], 0.1)


def test_only_enrolled_sites_can_be_chosen(server, sites):
    assert runs.chosen_sites(server, ()) == sorted(SIZES)
    assert runs.chosen_sites(server, ["lisbon", "berlin"]) == ["berlin", "lisbon"]
    with pytest.raises(InvalidInput, match="must be enrolled, got oslo"):
        runs.chosen_sites(server, ["oslo"])


def test_nothing_starts_before_enough_sites_have_accepted(transport, agreement, sites, monkeypatch):
    monkeypatch.setattr(runs, "_AGAIN_S", 0.01)
    assert agreement.min_answers == 2
    sites_by_name = {folder.name: folder for folder in sites}
    with pytest.raises(DPFedCError, match=r"accepted by 2 sites, got 0\. Nothing has been releas"):
        runs.acceptances(transport, agreement, 0.1)
    sites_by_name["berlin"].accept(agreement.digest)
    with pytest.raises(DPFedCError, match="got 1"):
        runs.acceptances(transport, agreement, 0.1)
    sites_by_name["lisbon"].accept(agreement.digest)
    assert runs.acceptances(transport, agreement, 0.1) == {"berlin", "lisbon"}
    transport.away = {"geneva"}
    assert runs.acceptances(transport, agreement, 600) == {"berlin", "lisbon"}
    transport.away = set()
    sites_by_name["geneva"].accept(agreement.digest)
    seen = []
    runs.acceptances(
        transport, agreement, 60, on_change=lambda yes, no: seen.append((len(yes), no))
    )
    assert seen == [(3, {})]


def test_an_acceptance_is_waited_for_and_a_refusal_is_not(tmp_path, server, monkeypatch):
    monkeypatch.setattr(runs, "_AGAIN_S", 0.01)
    folders = [site_folder(tmp_path, name) for name in ("berlin", "lisbon")]
    folders.append(site_folder(tmp_path, "geneva", cap=GaussianCap(0.1, 1e-4)))
    for folder in folders:
        server.enrol(folder.name, (folder.path / "site.pub").read_text())
    transport = DeskTransport(folders)
    agreement = runs.proposal(server, transport, plan_file(server), sorted(SIZES))
    seen = []

    def on_change(accepted, refusals):
        seen.append((sorted(accepted), sorted(refusals)))
        for folder in folders[: min(2, 1 + len(accepted))]:
            folder.accept(agreement.digest)

    assert runs.acceptances(transport, agreement, 60, on_change=on_change) == {"berlin", "lisbon"}
    assert seen == [([], ["geneva"]), (["berlin"], ["geneva"]), (["berlin", "lisbon"], ["geneva"])]
    transport.close()


def test_from_proposal_to_the_model_at_every_site(server, transport, agreement, sites):
    for folder in sites:
        folder.keep(agreement)
        folder.accept(agreement.digest)
    path = runs.run_folder(server, agreement)
    assert runs.standing(path) == "offered"
    finished = Coordinator(agreement, transport, path, key=server.receipt_key).run()
    assert (runs.standing(path), runs.name_of(path)) == ("finished", "study")
    transport.away = {"geneva"}
    assert runs.publish(transport, agreement, path) == {"berlin", "lisbon"}
    model = ClusterModel.read(sites[0].run(agreement.digest) / "model.npz")
    np.testing.assert_array_equal(model.cluster_centers, finished.model.cluster_centers)
    labels = model.labels(by_site()["berlin"])
    assert len(set(labels.tolist())) > 1
    assert runs.stored_agreement(server, "").digest == agreement.digest
    assert runs.stored_agreement(server, agreement.digest[:8]).digest == agreement.digest
    with pytest.raises(InvalidInput, match=f"known: {agreement.digest[:12]}"):
        runs.stored_agreement(server, "nothing")


def test_a_plan_that_cannot_succeed_is_not_offered(server, transport):
    path = plan_file(server)
    path.write_text(PLAN.replace("epsilon = 50", "epsilon = 0.5"))
    with pytest.raises(NotFound, match=r"cannot be found among .* Nothing has been offered"):
        runs.proposal(server, transport, path, list(SIZES))


def test_the_verdict_on_a_run_goes_into_its_files(server, transport, agreement, sites):
    for folder in sites:
        folder.keep(agreement)
        folder.accept(agreement.digest)
    path = runs.run_folder(server, agreement)
    finished = Coordinator(agreement, transport, path, key=server.receipt_key).run()
    assert "verdict" not in RunRecord.read(path / "run.jsonl").results
    judged = runs.judged(agreement, finished, path)
    written = RunRecord.read(path / "run.jsonl")
    assert written.results["verdict"]["word"] in ("usable", "rough", "useless")
    assert written == judged.record
    model = ClusterModel.read(path / "model.npz")
    np.testing.assert_array_equal(model.sizes, judged.model.sizes)


def test_a_name_has_one_key_and_a_key_one_name(server, tmp_path, sites):
    line = (sites[0].path / "site.pub").read_text()
    with pytest.raises(InvalidInput, match="enrolled already, as 'berlin'"):
        server.enrol("oslo", line)
    (tmp_path / "again").mkdir()
    other = site_folder(tmp_path / "again", "berlin")
    with pytest.raises(InvalidInput, match="the name 'berlin' is taken by the key"):
        server.enrol("berlin", (other.path / "site.pub").read_text())
    server.remove("berlin")
    server.enrol("berlin", (other.path / "site.pub").read_text())
    for name in ("../x", "", "a b", ".hidden", "x" * 65):
        with pytest.raises(InvalidInput, match="a site's name must be"):
            server.enrol(name, line)
    with pytest.raises(InvalidInput, match="no site 'oslo' is enrolled"):
        server.remove("oslo")


def test_a_server_without_tls_stays_on_this_machine(tmp_path):
    for listen in ("0.0.0.0", "192.0.2.1", "hub.example.org", "::"):
        with pytest.raises(InvalidInput, match="must stay on a loopback address"):
            ServerFolder.create(tmp_path / "plain", hosts=(), listen=listen, port=1, insecure=True)
    made = ServerFolder.create(
        tmp_path / "plain", hosts=(), listen="127.0.0.1", port=1, insecure=True
    )
    text = (made.path / "server.toml").read_text().replace("127.0.0.1", "0.0.0.0")
    (made.path / "server.toml").write_text(text)
    with pytest.raises(InvalidInput, match="must stay on a loopback address"):
        ServerFolder.open(made.path)
