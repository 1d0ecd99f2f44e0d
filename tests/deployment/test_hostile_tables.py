"""Whatever stands in the rows of a site's file, the server sees the same replies and charges."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from dpfedc.deployment import control
from dpfedc.deployment.agreement import Site
from dpfedc.deployment.control import opened
from dpfedc.deployment.keys import public_key
from dpfedc.deployment.messages import Answer, Request
from dpfedc.deployment.proposal import proposed
from dpfedc.deployment.site_folder import SiteFolder
from dpfedc.deployment.site_service import SiteService
from dpfedc.privacy.ledger import GaussianCap, Ledger, site_ledger
from dpfedc.tables.schema import Schema
from dpfedc.tables.trial_tables import read_encoded
from support.deployment import KEY
from support.site_services import authority_in, key_of

N_ROWS = 12
SCHEMA = """
[[column]]
name = "a"
kind = "number"
range = [0, 20]

[[column]]
name = "b"
kind = "category"
values = ["x", "y"]
"""
PLAIN = [f"{i},{'xy'[i % 2]}".encode() for i in range(N_ROWS)]


def lines(*changed):
    """Return the rows, of which some are changed: (place, what stands there)."""
    rows = list(PLAIN)
    for place, content in changed:
        rows[place] = content
    return b"a,b\n" + b"\n".join(rows) + b"\n"


HOSTILE = {
    "lone quotes": lines((2, b'"3,x'), (5, b'6,"y'), (6, b'7,y"')),
    "carriage returns": lines((1, b"1\r,x"), (4, b"4,y\r"), (7, b"\r7,x"), (9, b"\r")),
    "nul": lines((0, b"\0,x"), (3, b"3\0,y"), (8, b"\0" * 50)),
    "bom": b"\xef\xbb\xbf" + lines((4, b"\xef\xbb\xbf4,x")),
    "wide": b"a,b," + b",".join(b"c%d" % i for i in range(100_000)) + b"\n"
    + b"\n".join(row + b"," * 100_000 for row in PLAIN) + b"\n",
    "a large cell": lines((6, b"6," + b"x" * 20_000_000)),
    "latin-1": lines((2, "ä,é".encode("latin-1"))),
    "mixed newlines": lines().replace(b"3,y\n", b"3,y\r\n").replace(b"8,x\n", b"8,x\r\n"),
    "blank tail": lines((8, b""), (9, b" "), (10, b""), (11, b"")),
    "wild numbers": lines((0, b"1e308,x"), (1, b"-inf,y"), (2, b"nan,x"), (3, b"1e-320,x"),
                          (4, b"9" * 5000 + b",y"), (5, b"0x10,x"), (6, b"1_0,y")),
    "nothing at all": b"a,b\n" + b"\n" * N_ROWS,
}  # fmt: skip


def seen_by_the_server(home, content):
    """Return all that reaches the server: what is said, how long it is, and what is charged."""
    home.mkdir()
    (home / "t.csv").write_bytes(lines())  # as it was when the site was set up
    (home / "schema.toml").write_text(SCHEMA)
    # Else the ledger's hash has the time and a salt in it.
    with patch.object(site_ledger, "datetime") as clock, patch.object(site_ledger, "secrets") as s:
        s.token_hex.return_value = "ab" * 16
        clock.now.return_value.isoformat.return_value = "2026-01-01T00:00:00+00:00"
        folder = SiteFolder.create(
            home / "site", name="berlin", server="127.0.0.1:1", authority=authority_in(home),
            data={"path": str(home / "t.csv")}, records=N_ROWS, cap=GaussianCap(99.0, 1e-3),
            holding="berlin", schema=home / "schema.toml",
        )  # fmt: skip
    (home / "t.csv").write_bytes(content)
    schema = folder.schema
    agreement = proposed(
        name="study", coordinator="university", receipt_key=public_key(KEY), method="dp-fedc",
        settings={"n_clusters": 2, "n_rounds": 1}, schema=schema, features=schema.features,
        sites=[Site("berlin", N_ROWS, key_of(folder))], epsilon=5.0, delta=1e-3, noise="secure",
        seed=1, deadline=5.0, min_answers=1,
    )  # fmt: skip
    service = SiteService(folder, accept=True)
    exchange = agreement.exchanges[0]
    request = Request(
        agreement.digest, "berlin", exchange.stage.name, 1, exchange.sent(agreement.declared)
    ).to_bytes()
    replies = [service.reply(r) for r in (control.hello(), control.offer(agreement), request)]
    answer = opened(replies[2])
    upload = Answer.from_bytes(answer, most=10**6).upload
    assert np.abs(upload.values.view(np.int64)).max() > 0
    service.close()
    with Ledger.open(folder.ledger) as ledger:
        spent = ledger.totals().spent
    return replies[:2], len(replies[2]), upload.kind, spent


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    said, length, kind, spent = seen_by_the_server(tmp_path_factory.mktemp("x") / "home", lines())
    return said[0], length, kind, spent


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_that_the_server_sees_depends_on_the_rows(tmp_path, usual, name):
    (hello, offered), length, kind, spent = seen_by_the_server(tmp_path / "home", HOSTILE[name])
    assert (hello, length, kind, spent) == usual
    assert b"accepted" in offered


@pytest.mark.parametrize("name", HOSTILE)
def test_a_trial_has_the_slots_of_the_site(tmp_path, name):
    path = tmp_path / "t.csv"
    path.write_bytes(HOSTILE[name])
    (tmp_path / "schema.toml").write_text(SCHEMA)
    schema = Schema.read(tmp_path / "schema.toml")
    folder = SiteFolder(tmp_path, "berlin", "", N_ROWS, {"path": str(path)})
    at_site = folder.source.load(schema)
    assert len(at_site.X) == N_ROWS
    if at_site.present.any():
        trial = read_encoded(path, schema)
        np.testing.assert_array_equal(trial.X, at_site.X)
        np.testing.assert_array_equal(trial.present, at_site.present)
