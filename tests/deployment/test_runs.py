"""A run from the coordinator's side: who must be there, who must accept, and what comes of it."""

import numpy as np
import pytest

from dpfedc.deployment import runs
from dpfedc.deployment.coordinator import Coordinator
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import DPFedCError, InvalidInput, NotFound
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.ledger import GaussianCap
from support.deployment import SIZES, by_site
from support.site_services import PLAN, DeskTransport, key_of, site_folder


def plan_file(server):
    path = server.path / "plan.toml"
    path.write_text(PLAN)
    return path


def changed(server, old, new):
    path = server.path / "changed.toml"
    path.write_text(PLAN.replace(old, new))
    return path


@pytest.fixture
def server(tmp_path):
    return ServerFolder.create(tmp_path / "server", hosts=(), listen="127.0.0.1", port=8470)


@pytest.fixture
def sites(tmp_path, server):
    folders = [site_folder(tmp_path, name) for name in SIZES]
    for folder in folders:
        server.enrol((folder.path / "site.pub").read_text())
    return folders


@pytest.fixture
def transport(sites):
    made = DeskTransport(sites)
    yield made
    made.close()


@pytest.fixture
def agreement(server, transport):
    return runs.proposal(server, transport, plan_file(server), list(SIZES))


def accepted(server, transport, agreement, wait_s, **how):
    heads, folder = KeptHeads(server.path), runs.run_folder(server, agreement)
    return runs.acceptances(transport, agreement, wait_s, folder=folder, heads=heads, **how)


def test_a_proposal_has_the_sites_as_they_are_enrolled_and_declare_themselves(agreement, sites):
    assert {site.name: site.n_records for site in agreement.sites} == SIZES
    assert [site.key for site in agreement.sites] == [key_of(folder) for folder in sites]


def test_the_same_plan_with_the_same_sites_is_the_same_run(server, transport, agreement):
    assert (
        runs.proposal(server, transport, plan_file(server), list(SIZES)).digest == agreement.digest
    )


def test_a_site_that_is_silent_cannot_be_planned_with(server, transport):
    transport.away = {"geneva"}
    waited, ask = [], transport.exchange
    transport.exchange = lambda asked, s: waited.append(s) or ask(asked, s)
    said = "geneva does not say how many records it has: .* Start it, or leave it out with --site"
    for wait_s in (4.0, 0.0, 9000.0):
        with pytest.raises(DPFedCError, match=said):
            runs.proposal(server, transport, plan_file(server), list(SIZES), wait_s=wait_s)
    assert waited == [4.0, 1.0, 120.0]


def test_sites_that_do_not_come_are_named(transport):
    transport.away = {"geneva"}
    seen = []
    with pytest.raises(DPFedCError, match=r"no connection from geneva within 0\.1 seconds"):
        runs.await_sites(transport, list(SIZES), 0.1, on_change=seen.append)
    assert seen == [{"berlin", "lisbon"}]
    runs.await_sites(transport, ["berlin", "lisbon"], 0.1)


def test_a_run_is_found_by_its_name_or_its_first_digits(server, transport, agreement):
    path = runs.run_folder(server, agreement)
    other = runs.proposal(
        server, transport, changed(server, 'name = "study"', 'name = "study"\nseed = 3'), [*SIZES]
    )
    for words in ("", "study", agreement.digest[:8]):
        assert runs.stored_agreement(server, words) == agreement
    runs.run_folder(server, other)
    assert runs.stored_agreement(server, other.digest[:8]) == other
    known = rf"got 'study'; known: .*{agreement.digest[:12]} \(study, offered\)"
    with pytest.raises(InvalidInput, match=known):
        runs.stored_agreement(server, "study")
    (path / "model.npz").touch()  # it is over, so the other one is meant
    assert runs.stored_agreement(server, "study") == other
    with pytest.raises(InvalidInput, match="got 'nothing'"):
        runs.stored_agreement(server, "nothing")


def test_only_enrolled_sites_can_be_chosen(server, sites):
    assert runs.chosen_sites(server, ()) == sorted(SIZES)
    assert runs.chosen_sites(server, ["lisbon", "berlin"]) == ["berlin", "lisbon"]
    with pytest.raises(InvalidInput, match="must be enrolled, got oslo"):
        runs.chosen_sites(server, ["oslo"])


def test_nothing_starts_before_enough_sites_have_accepted(
    server, transport, agreement, sites, monkeypatch
):
    monkeypatch.setattr(runs, "_AGAIN_S", 0.01)
    assert agreement.min_answers == 2
    sites_by_name = {folder.name: folder for folder in sites}
    with pytest.raises(DPFedCError, match=r"by 2 sites, got 0\. .*Nothing has been released"):
        accepted(server, transport, agreement, 0.1)
    sites_by_name["berlin"].accept(agreement.digest)
    transport.away = {"geneva"}
    who = r"got 1 \(berlin\)\. Not accepted yet: lisbon\. Not connected: geneva\. "
    with pytest.raises(DPFedCError, match=who):
        accepted(server, transport, agreement, 0.1)
    transport.away = {"geneva", "lisbon"}
    with pytest.raises(DPFedCError, match="Start the sites that are away"):
        accepted(server, transport, agreement, 0.1)
    transport.away = set()
    sites_by_name["lisbon"].accept(agreement.digest)
    assert accepted(server, transport, agreement, 0.1) == {"berlin", "lisbon"}
    transport.away = {"geneva"}
    assert accepted(server, transport, agreement, 600) == {"berlin", "lisbon"}
    transport.away = set()
    sites_by_name["geneva"].accept(agreement.digest)
    seen = []
    accepted(
        server, transport, agreement, 60, on_change=lambda yes, no: seen.append((len(yes), no))
    )
    assert seen == [(3, {})]


def test_an_acceptance_is_waited_for_and_a_refusal_is_not(tmp_path, server, monkeypatch):
    monkeypatch.setattr(runs, "_AGAIN_S", 0.01)
    folders = [site_folder(tmp_path, name) for name in ("berlin", "lisbon")]
    folders.append(site_folder(tmp_path, "geneva", cap=GaussianCap(0.1, 1e-4)))
    for folder in folders:
        server.enrol((folder.path / "site.pub").read_text())
    transport = DeskTransport(folders)
    agreement = runs.proposal(server, transport, plan_file(server), sorted(SIZES))
    seen = []

    def on_change(accepted, refusals):
        seen.append((sorted(accepted), sorted(refusals)))
        for folder in folders[: min(2, 1 + len(accepted))]:
            folder.accept(agreement.digest)

    assert accepted(server, transport, agreement, 60, on_change=on_change) == {"berlin", "lisbon"}
    assert seen == [([], ["geneva"]), (["berlin"], ["geneva"]), (["berlin", "lisbon"], ["geneva"])]
    transport.close()


def test_from_proposal_to_the_model_at_every_site(server, transport, agreement, sites):
    for folder in sites:
        folder.keep(agreement)
        folder.accept(agreement.digest)
    path = runs.run_folder(server, agreement)
    assert runs.standing(path) == "offered"
    heads = KeptHeads(server.path)
    finished = Coordinator(agreement, transport, path, key=server.receipt_key, heads=heads).run()
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
    heads = KeptHeads(server.path)
    finished = Coordinator(agreement, transport, path, key=server.receipt_key, heads=heads).run()
    assert "verdict" not in RunRecord.read(path / "run.jsonl").results
    judged = runs.judged(agreement, finished, path)
    written = RunRecord.read(path / "run.jsonl")
    assert written.results["verdict"]["word"] in ("usable", "rough", "useless")
    assert written == judged.record
    model = ClusterModel.read(path / "model.npz")
    np.testing.assert_array_equal(model.sizes, judged.model.sizes)


def test_a_name_has_one_key_and_a_key_one_name(server, tmp_path, sites):
    text = (sites[0].path / "site.pub").read_text()
    with pytest.raises(InvalidInput, match="enrolled already, as 'berlin'"):
        server.enrol(text, "oslo")
    (tmp_path / "again").mkdir()
    other = site_folder(tmp_path / "again", "berlin")
    with pytest.raises(InvalidInput, match="the name 'berlin' is taken by the certificate"):
        server.enrol((other.path / "site.pub").read_text())
    server.remove("berlin")
    assert server.enrol((other.path / "site.pub").read_text()) == "berlin"
    for name in ("../x", "", "a b", ".hidden", "x" * 65):
        with pytest.raises(InvalidInput, match="a site's name must be"):
            server.enrol(text, name)
    with pytest.raises(InvalidInput, match="no site 'oslo' is enrolled"):
        server.remove("oslo")


def test_a_new_key_takes_the_place_of_the_one_that_signed_it(server, tmp_path, sites):
    berlin, geneva = sites[0], sites[1]
    before = server.enrolled()[berlin.name]
    new = berlin.rotate_key().read_text()
    with pytest.raises(InvalidInput, match="is taken by the certificate"):
        server.enrol(new, geneva.name)
    assert server.enrol(new) == berlin.name
    after = server.enrolled()[berlin.name]
    assert before != after
    assert "ROTATION" not in (server.path / "sites" / f"{berlin.name}.pub").read_text()
    newer, old = berlin.identities()
    assert (newer.certificate, old.certificate) == (after, before)
    with pytest.raises(InvalidInput, match="a new key waits already"):
        berlin.rotate_key()
    berlin.admitted(old)
    assert len(berlin.identities()) == 2
    berlin.admitted(newer)
    assert [identity.certificate for identity in berlin.identities()] == [after]


def test_a_key_is_taken_over_whole_though_it_was_cut_off_in_the_middle(sites):
    berlin = sites[0]
    berlin.rotate_key()
    newer, _ = berlin.identities()
    (berlin.path / "next" / "site.key").replace(berlin.path / "site.key")
    assert [identity.certificate for identity in berlin.identities()] == [newer.certificate]
    assert not (berlin.path / "next").exists()


def test_certificates_are_renewed_without_the_sites_noticing(server, sites):
    authority, operator = server.authority.read_bytes(), server.operator
    before = server.standing()
    certificate = server.certificate_files[0].read_bytes()
    server.renew()
    assert server.standing() != before
    assert server.authority.read_bytes() == authority
    assert server.certificate_files[0].read_bytes() != certificate
    assert server.operator.key.private_bytes_raw() == operator.key.private_bytes_raw()
    assert server.operator.certificate != operator.certificate


def test_a_folder_of_version_0_1_keeps_its_key(server):
    """Its runs name the key, and can be resumed."""
    old = server.operator.key.private_bytes_raw()
    for name in ("operator.key", "operator.crt"):
        (server.path / name).unlink()
    (server.path / "receipts.key").write_text(old.hex() + "\n")
    (server.path / "receipts.key").chmod(0o600)
    with pytest.raises(InvalidInput, match=r"made by version 0\.1: `dpfedc server renew`"):
        _ = server.operator
    server.renew()
    assert server.operator.key.private_bytes_raw() == old
    assert not (server.path / "receipts.key").exists()


END = "-----END CERTIFICATE-----\n"


def test_what_stands_beside_a_certificate_is_not_enrolled(server, sites):
    """A line in front must not cut it off: the folder could not be read, nor anyone removed."""
    text = END + sites[0].rotate_key().read_text() + END
    assert server.enrol(text) == sites[0].name
    assert server.unreadable() == []
    written = (server.path / "sites" / f"{sites[0].name}.pub").read_text()
    assert (written.count("BEGIN"), written.count("END")) == (1, 1)
    assert server.enrolled()[sites[0].name] == sites[0].identities()[0].certificate


def test_a_certificate_that_its_own_key_did_not_sign_is_refused(server, sites):
    from base64 import b64decode, b64encode

    server.remove(sites[0].name)
    lines = (sites[0].path / "site.pub").read_text().splitlines()
    der = bytearray(b64decode("".join(lines[1:-1])))
    der[-1] ^= 1
    text = "\n".join([lines[0], b64encode(der).decode(), lines[-1]])
    with pytest.raises(InvalidInput, match="must be signed by its own key"):
        server.enrol(text)


def test_one_damaged_file_admits_nobody_and_keeps_nobody(server, sites):
    others = [folder.name for folder in sites[1:]]
    (server.path / "sites" / f"{sites[0].name}.pub").write_text("gone\n")
    assert sorted(server.enrolled()) == sorted(others)
    assert server.unreadable() == [f"sites/{sites[0].name}.pub"]
    server.remove(others[0])
    assert others[0] not in server.enrolled()
    server.remove(sites[0].name)
    assert server.unreadable() == []


def test_names_differ_by_more_than_case(server, sites, tmp_path):
    (tmp_path / "again").mkdir()
    other = site_folder(tmp_path / "again", "berlin")
    with pytest.raises(InvalidInput, match="more than case, got 'Berlin'"):
        server.enrol((other.path / "site.pub").read_text(), "Berlin")


@pytest.mark.parametrize("left", ["an empty key", "a stray file", "no key at all"])
def test_a_key_can_be_made_whatever_a_crash_left(sites, left):
    berlin = sites[0]
    if left == "no key at all":
        (berlin.path / "site.key").unlink()
    else:
        berlin.rotate_key()
        for file in (berlin.path / "next").iterdir():
            file.unlink()
        name = "site.key" if left == "an empty key" else ".DS_Store"
        (berlin.path / "next" / name).touch(mode=0o600)
        assert len(berlin.identities()) == 1
    public = berlin.rotate_key()
    assert berlin.identities()[0].certificate_file == public
