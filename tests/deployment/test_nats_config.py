"""What `dpfedc server nats-config` writes, and what the commands say; no server is started."""

import json
import shutil
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from dpfedc.deployment.certificates import days_left, write_site_key
from dpfedc.deployment.keys import read_certificate
from dpfedc.deployment.mailbox import nats_wire
from dpfedc.deployment.mailbox.nats_config import Node, Nodes, one_at_a_time, site_subject
from dpfedc.deployment.mailbox.nats_operator import NatsMailbox, taken_up
from dpfedc.deployment.mailbox.operator_side import mailbox_of
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.errors import InvalidInput, MissingExtra
from support.command_line import outcome
from support.mailboxes import InBackground
from support.ports import reserved_port

THREE = ["hub1.example.org:4222", "hub2.example.org:4222", "[::1]:4222"]


@pytest.fixture
def server(tmp_path):
    """Return the folder of a server with two sites, whose names share a beginning."""
    folder = ServerFolder.create(tmp_path / "server", hosts=(), listen="127.0.0.1", port=8470)
    for name in ("st.gallen", "st"):
        (tmp_path / name).mkdir()
        write_site_key(tmp_path / name, name)
        folder.enrol((tmp_path / name / "site.pub").read_text())
    return folder


def written(server, addresses, **how):
    """Return the nodes, and the configuration of each."""
    how = {"listen": "0.0.0.0", "monitoring": False, **how}
    nodes = Nodes.chosen(server, addresses, **how)
    nodes.write()
    return nodes, [json.loads((nodes.place(n) / "nats.conf").read_text()) for n in nodes.nodes]


def test_a_single_server_has_no_cluster_and_no_monitoring(server):
    nodes, (settings,) = written(server, ["hub.example.org:4222"])
    assert "cluster" not in settings
    assert "http" not in settings
    assert settings["tls"]["min_version"] == "1.3"
    assert settings["tls"]["verify"] is settings["tls"]["handshake_first"] is True
    assert nodes.for_sites == "nats://hub.example.org:4222"
    with closing(mailbox_of(ServerFolder.open(server.path))) as mailbox:
        assert isinstance(mailbox, NatsMailbox)


def test_nodes_of_a_cluster_call_each_other_with_certificates(server):
    nodes, settings = written(server, THREE, monitoring=True)
    assert len({each["server_tags"][0] for each in settings}) == 3
    for node, each in zip(nodes.nodes, settings, strict=True):
        others = [n.route for n in nodes.nodes if n != node]
        assert each["cluster"]["routes"] == [f"nats://{route}" for route in others]
        assert each["cluster"]["port"] == 6222
        assert each["cluster"]["tls"]["verify"] is True
        assert each["http"] == "127.0.0.1:8222"
        place = nodes.place(node)
        for name in ("node.key", "nats.conf"):
            assert (place / name).stat().st_mode & 0o077 == 0
        assert read_certificate((place / "node.crt").read_bytes()).issuer == server_name(server)
        assert days_left(place / "node.crt") > 700


def server_name(server):
    return read_certificate(server.authority.read_bytes()).subject


def test_nothing_that_is_the_operators_goes_to_a_node(server):
    nodes, _ = written(server, THREE)
    secrets = {(server.path / f"{name}.key").read_bytes() for name in ("ca", "operator", "server")}
    keys = [(nodes.place(node) / "node.key").read_bytes() for node in nodes.nodes]
    assert len({*keys, *secrets}) == 6
    for node in nodes.nodes:
        assert sorted(file.name for file in nodes.place(node).iterdir()) == [
            "ca.crt", "callers.pem", "nats.conf", "node.crt", "node.key",
        ]  # fmt: skip


def test_names_with_dots_do_not_reach_into_each_other(server):
    _, (settings,) = written(server, ["localhost:4222"])
    imports = settings["accounts"]["OPERATOR"]["imports"]
    subjects = [one["to"] for one in imports if one["to"].startswith("site.")]
    assert sorted(subjects) == ["site.st", "site.st:gallen"]
    assert site_subject("st.gallen") == "site.st:gallen"


def test_every_site_has_one_user_who_may_only_answer(server):
    _, (settings,) = written(server, ["localhost:4222"])
    accounts = settings["accounts"]
    assert {*accounts} == {"SYSTEM", "OPERATOR", "SITE-st", "SITE-st.gallen"}
    assert "users" not in accounts["SYSTEM"]
    keys = {user["nkey"] for account in accounts.values() for user in account.get("users", ())}
    assert len(keys) == 3
    for name in ("SITE-st", "SITE-st.gallen"):
        (user,) = accounts[name]["users"]
        assert user["permissions"]["publish"] == {"deny": [">"]}
        assert user["permissions"]["subscribe"] == {"allow": ["request"]}
        assert user["permissions"]["allow_responses"]["max"] == 1
        assert accounts[name]["exports"] == [{"service": "request", "accounts": ["OPERATOR"]}]
        assert "imports" not in accounts[name]


def test_who_is_enrolled_changes_nothing_that_a_running_server_cannot_change(server):
    _, (two,) = written(server, ["localhost:4222"])
    server.remove("st")
    _, (one,) = written(server, ["localhost:4222"])
    assert {name for name in two if one[name] != two[name]} == {"accounts", "server_tags"}


def test_certificates_of_nodes_stay_until_they_are_renewed(server):
    nodes, (before,) = written(server, ["localhost:4222"])
    key = nodes.place(nodes.nodes[0]) / "node.key"
    old = key.read_bytes()
    nodes.write()
    assert key.read_bytes() == old
    _, (same,) = written(server, ["localhost:4222"])
    assert same == before
    nodes.write(renewed=True)
    assert key.read_bytes() != old


@pytest.mark.parametrize(
    ("addresses", "reason"),
    [
        ([], "there must be nodes"),
        (["hub"], "HOST:PORT"),
        (["hub:4222", "hub:4222"], "each of them once"),
        (["hub:0"], "HOST:PORT"),
        (["a:64000", "b:64000"], "at most 63535"),
        (["a b:4222"], "--node must be HOST:PORT"),
        (["hub:4222", "HUB:4222"], "each of them once"),
        (["hub:4222", "Hub:6222"], "both take 6222"),
        (["hub:6222", "hub:4222"], "both take 6222"),
    ],
)
def test_nodes_that_cannot_be_are_refused_and_nothing_is_written(server, addresses, reason):
    with pytest.raises(InvalidInput, match=reason):
        Nodes.chosen(server, addresses, listen="0.0.0.0", monitoring=False)
    assert ServerFolder.open(server.path).nats == {}


@pytest.mark.parametrize(
    ("addresses", "reason"),
    [
        (["hub:63000"], "at most 61535"),
        (["hub:4222", "hub:8222"], "both take 8222"),
        (["hub:4222", "hub:6223", "hub:4223"], "both take 6223"),
    ],
)
def test_ports_for_monitoring_count_too(server, addresses, reason):
    with pytest.raises(InvalidInput, match=reason):
        Nodes.chosen(server, addresses, listen="0.0.0.0", monitoring=True)
    assert ServerFolder.open(server.path).nats == {}


def test_what_collides_on_one_host_is_good_on_two(server):
    written(server, ["hub1:4222", "hub2:6222"], monitoring=True)
    written(server, ["hub1:63000"])
    written(server, ["hub1:4222", "hub1:8222"])


def test_commands_that_come_at_once_write_one_after_the_other(server, tmp_path):
    """Each writes the files of all, from what is enrolled when its turn comes."""
    nodes, _ = written(server, ["localhost:1", "localhost:2"])  # where nobody listens
    names = [f"site{i}" for i in range(6)]
    for name in names:
        (tmp_path / name).mkdir()
        write_site_key(tmp_path / name, name)

    def enrol(name):
        server.enrol((tmp_path / name / "site.pub").read_text())
        taken_up(nodes.folder)

    for each in [InBackground(enrol, name) for name in names]:
        each.result()
    for node in nodes.nodes:
        accounts = json.loads((nodes.place(node) / "nats.conf").read_text())["accounts"]
        assert {f"SITE-{name}" for name in names} <= {*accounts}


def test_while_another_command_writes_the_files_nobody_else_does(server):
    nodes, _ = written(server, ["localhost:1"])
    place = nodes.place(nodes.nodes[0])
    before = (place / "nats.conf").read_bytes()
    server.remove("st")
    with one_at_a_time(server):
        writing = InBackground(taken_up, nodes.folder)
        time.sleep(0.1)
        assert not writing.done
        assert (place / "nats.conf").read_bytes() == before
    writing.result()
    assert (place / "nats.conf").read_bytes() != before


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
@pytest.mark.parametrize("file", ["node.crt", "node.key"])
def test_a_broken_certificate_of_a_node_is_named_and_can_be_renewed(server, file, content):
    nodes, before = written(server, ["localhost:4222", "localhost:4223"])
    broken = nodes.place(nodes.nodes[1]) / file
    if content is None:  # that of the other node
        content = (nodes.place(nodes.nodes[0]) / file).read_bytes()
    broken.write_bytes(content)
    server.remove("st")
    with pytest.raises(InvalidInput, match=f"localhost-4223 .*dpfedc server renew {server.path}"):
        nodes.write()
    nodes.write(renewed=True)
    for node, old in zip(nodes.nodes, before, strict=True):
        accounts = json.loads((nodes.place(node) / "nats.conf").read_text())["accounts"]
        assert {*old["accounts"]} - {*accounts} == {"SITE-st"}


def test_a_folder_that_says_too_little_is_refused(server):
    with pytest.raises(InvalidInput, match="must have nodes, listen and monitoring"):
        Nodes.of(server.over_nats({"nodes": ["a:1"]}))


def test_an_address_of_ip_version_6_is_written_with_brackets():
    node = Node.at("[::1]:4222")
    assert (node.host, node.address, node.route) == ("::1", "[::1]:4222", "[::1]:6222")
    assert "/" not in node.name
    assert ":" not in node.name


def test_the_commands_say_what_to_do(server, tmp_path, capsys):
    def said(*words):
        code, out, err = outcome(capsys, ["server", *words])
        return code, " ".join((out + err).split())

    port, keeper = reserved_port()
    code, words = said("nats-config", server.path)
    assert (code, "must be a --node" in words) == (2, True)
    code, words = said("nats-config", server.path, "--node", f"127.0.0.1:{port}")
    assert code == 0
    assert "No node can be reached: a node goes by it once it is started" in words
    assert f"--server nats://127.0.0.1:{port}" in words
    code, words = said("start", server.path)
    assert (code, "nats-server -c nats.conf" in words) == (2, True)
    code, words = said("status", server.path)
    assert (code, "NOT RUNNING" in words) == (0, True)
    code, words = said("remove", server.path, "st")
    assert (code, words.startswith("Removed st.")) == (0, True)
    config = server.path / "nats" / f"127.0.0.1-{port}" / "nats.conf"
    assert "SITE-st.gallen" in config.read_text()
    assert 'SITE-st"' not in config.read_text()
    code, words = said("enrol", server.path, tmp_path / "st" / "site.pub")
    assert (code, 'SITE-st"' in config.read_text()) == (0, True)
    keeper.close()


def test_a_site_is_set_up_for_nats(server, tmp_path, capsys):
    np.savetxt(tmp_path / "a.csv", np.ones((5, 2)), delimiter=",", header="a,b", comments="")

    def init(name, address, *more):
        words = ["site", "init", tmp_path / name, "--name", name, "--server", address, "--ca",
                 server.authority, "--data", tmp_path / "a.csv", "--cap-epsilon", 1,
                 "--cap-delta", 1e-5, *more]  # fmt: skip
        code, out, err = outcome(capsys, words)
        return code, out + err

    address = "nats://hub1.example.org:4222,[::1]:4222"
    assert init("good", address)[0] == 0
    assert SiteFolder.open(tmp_path / "good").server == address
    for bad in ("nats://", "nats://hub", "nats://a:1,,b:2", "tls://a:1", "nats://a:1,nats://b:2"):
        assert init("bad", bad)[0] == 2
    code, words = init("bad", address, "--proxy-ca", server.authority)
    assert (code, "proxy that opens TLS" in words) == (2, True)
    assert not (tmp_path / "bad").exists() or not any((tmp_path / "bad").iterdir())


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(MissingExtra, match=r"dpfedc\[deploy,nats\]"):
        nats_wire.require_nats()


def test_without_nats_server_here_the_files_are_written_unchecked(server, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    nodes, _ = written(server, ["localhost:4222"])
    assert (nodes.place(nodes.nodes[0]) / "nats.conf").exists()
