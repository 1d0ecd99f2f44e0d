"""Certificates and keys: what they say, who may read them, and what a signature proves."""

import dataclasses
import hashlib
import ssl
import time

import pytest
from cryptography import x509

from dpfedc.deployment.certificates import (
    renew_server_certificates,
    takes_the_place_of,
    write_server_certificates,
    write_site_key,
)
from dpfedc.deployment.keys import (
    Identity,
    private_pem,
    read_certificate,
    require_private,
    verifying_key,
    write_private,
)
from dpfedc.deployment.mailbox.letters import LetterBox, letter, opened_reply, reply
from dpfedc.deployment.mailbox.signed_calls import Signatures, signed_header
from dpfedc.errors import DataUnavailable, InvalidInput


@pytest.fixture
def certificates(tmp_path):
    write_server_certificates(tmp_path, ("hub.example.org", "192.0.2.7", "::1"))
    return tmp_path


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_server_certificate_names_its_hosts_and_comes_from_the_authority(certificates):
    ca, server = read(certificates / "ca.crt"), read(certificates / "server.crt")
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hub.example.org"]
    addresses = [str(ip) for ip in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["192.0.2.7", "::1"]


def test_only_the_authority_may_sign_certificates(certificates):
    may_sign = []
    for name in ("ca.crt", "server.crt"):
        constraints = read(certificates / name).extensions.get_extension_for_class(
            x509.BasicConstraints
        )
        assert constraints.critical
        may_sign.append(constraints.value.ca)
    assert may_sign == [True, False]


def handshake(folder, authority, host):
    """Return whether a client that trusts the authority takes the server for the host."""
    sides = [ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)]
    sides[0].load_verify_locations(authority / "ca.crt")
    sides[1].load_cert_chain(folder / "server.crt", folder / "server.key")
    pipes = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = sides[0].wrap_bio(*pipes, server_hostname=host)
    server = sides[1].wrap_bio(*pipes[::-1], server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_a_client_takes_the_server_by_its_names_only(certificates):
    assert handshake(certificates, certificates, "hub.example.org")
    assert handshake(certificates, certificates, "192.0.2.7")
    assert not handshake(certificates, certificates, "other.example.org")


def test_a_client_refuses_a_server_of_another_authority(certificates, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_server_certificates(other, ("hub.example.org",))
    assert not handshake(certificates, other, "hub.example.org")


def test_private_files_are_private_and_never_replaced(certificates, tmp_path):
    write_site_key(tmp_path, "berlin")
    for name in ("ca.key", "server.key", "site.key"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_site_key(tmp_path, "berlin")


def test_a_key_that_others_may_read_is_refused(tmp_path):
    write_site_key(tmp_path, "berlin")
    (tmp_path / "site.key").chmod(0o640)
    with pytest.raises(InvalidInput, match="owner only, got mode 640"):
        Identity.read(tmp_path / "site.key", tmp_path / "site.pub")
    with pytest.raises(DataUnavailable, match="no such key file"):
        require_private(tmp_path / "none.key")


@pytest.fixture
def berlin(tmp_path):
    write_site_key(tmp_path, "berlin")
    return Identity.read(tmp_path / "site.key", tmp_path / "site.pub")


@pytest.fixture
def stranger(tmp_path):
    (tmp_path / "other").mkdir()
    write_site_key(tmp_path / "other", "berlin")
    return Identity.read(tmp_path / "other" / "site.key", tmp_path / "other" / "site.pub")


def test_a_reply_holds_for_one_site_one_request_and_one_answer(berlin, stranger):
    key = verifying_key(berlin.certificate)
    data = reply(berlin, "berlin", b"request", b"answer")
    assert opened_reply(key, "berlin", b"request", data) == b"answer"
    assert opened_reply(key, "berlin", b"another", data) is None
    assert opened_reply(key, "lisbon", b"request", data) is None
    assert opened_reply(key, "berlin", b"request", data + b"x") is None
    assert opened_reply(key, "berlin", b"request", bytes([data[0] ^ 1]) + data[1:]) is None
    assert opened_reply(key, "berlin", b"request", data[:63]) is None
    assert opened_reply(key, "berlin", b"", data) is None
    assert opened_reply(verifying_key(stranger.certificate), "berlin", b"request", data) is None


def test_a_letter_is_of_the_operator_and_for_one_site(certificates, tmp_path):
    operator = Identity.read(certificates / "operator.key", certificates / "operator.crt")
    authority = read(certificates / "ca.crt")
    data = letter(operator, "berlin", b"request")
    assert LetterBox("berlin", authority).opened(data) == b"request"
    for changed, name in (
        (data, "lisbon"),
        (data + b"x", "berlin"),
        (data[:-1], "berlin"),
        (data[:300] + bytes([data[300] ^ 1]) + data[301:], "berlin"),
        (data[:15], "berlin"),
        (data[:40], "berlin"),
        (b"", "berlin"),
        (b"dpfedc letter 2\n" + data[16:], "berlin"),
    ):
        with pytest.raises(InvalidInput, match=r"a letter must|the sender must"):
            LetterBox(name, authority).opened(changed)


def test_a_letter_of_another_authority_or_of_the_server_itself_is_refused(certificates, tmp_path):
    (tmp_path / "other").mkdir()
    write_server_certificates(tmp_path / "other", ())
    other = Identity.read(tmp_path / "other" / "operator.key", tmp_path / "other" / "operator.crt")
    box = LetterBox("berlin", read(certificates / "ca.crt"))
    with pytest.raises(InvalidInput, match=r"must be certified by the authority in ca\.crt"):
        box.opened(letter(other, "berlin", b"request"))
    operator = Identity.read(certificates / "operator.key", certificates / "operator.crt")
    server = dataclasses.replace(operator, certificate=read(certificates / "server.crt"))
    with pytest.raises(InvalidInput, match="must be the server's operator"):
        box.opened(letter(server, "berlin", b"request"))
    # A good letter before does not open the door for a bad one.
    assert box.opened(letter(operator, "berlin", b"request")) == b"request"
    with pytest.raises(InvalidInput, match="must be certified"):
        box.opened(letter(other, "berlin", b"request"))


def test_a_letter_of_an_operator_whose_certificate_has_ended_is_refused(certificates, monkeypatch):
    monkeypatch.setattr("dpfedc.deployment.certificates._SHORT_DAYS", -1)
    renew_server_certificates(certificates)
    operator = Identity.read(certificates / "operator.key", certificates / "operator.crt")
    box = LetterBox("berlin", read(certificates / "ca.crt"))
    with pytest.raises(InvalidInput, match="must be good today"):
        box.opened(letter(operator, "berlin", b"request"))


def test_a_signed_call_holds_once_for_one_site_path_server_and_time(
    certificates, berlin, stranger, tmp_path, monkeypatch
):
    authority, sites = read(certificates / "ca.crt"), {"berlin": berlin.certificate}
    header = signed_header(berlin, "berlin", authority, "/v1/mail", b"body")
    digest = hashlib.sha256(b"body").hexdigest()
    known = Signatures(authority)
    assert known.caller(header, "/v1/mail", sites) == ("berlin", digest)
    with pytest.raises(InvalidInput, match="not used before"):
        known.caller(header, "/v1/mail", sites)
    (tmp_path / "third").mkdir()
    write_server_certificates(tmp_path / "third", ())
    other = read(tmp_path / "third" / "ca.crt")
    words = header.split(" ")
    for server, text, path, message in (
        (authority, header, "/v1/mail?answers=0", "another signature"),
        (other, header, "/v1/mail", "another signature"),
        (authority, " ".join(["lisbon", *words[1:]]), "/v1/mail", "another signature"),
        (authority, " ".join([*words[:3], "0" * 64, words[4]]), "/v1/mail", "another signature"),
        (authority, "", "/v1/mail", "got another form"),
        (authority, " ".join([*words[:4], "%%"]), "/v1/mail", "signed as agreed"),
        (authority, signed_header(stranger, "berlin", authority, "/v1/mail", b""), "/v1/mail",
         "another signature"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=message):
            Signatures(server).caller(text, path, sites)
    now = time.time()
    for shift in (-310, 310):  # the header has whole seconds
        monkeypatch.setattr("time.time", lambda at=now + shift: at)
        with pytest.raises(InvalidInput, match="the clock must be right"):
            Signatures(authority).caller(header, "/v1/mail", sites)


def test_used_numbers_are_forgotten_when_their_time_is_over_and_not_before(
    certificates, berlin, monkeypatch
):
    authority, sites = read(certificates / "ca.crt"), {"berlin": berlin.certificate}
    known, now = Signatures(authority), 1_800_000_000.0
    monkeypatch.setattr("dpfedc.deployment.mailbox.signed_calls.MAX_NONCES", 2)
    monkeypatch.setattr("time.time", lambda: now)
    for _ in range(2):
        known.caller(signed_header(berlin, "berlin", authority, "/", b""), "/", sites)
    with pytest.raises(InvalidInput, match="not used before"):
        known.caller(signed_header(berlin, "berlin", authority, "/", b""), "/", sites)
    now += 601
    known.caller(signed_header(berlin, "berlin", authority, "/", b""), "/", sites)


def test_a_new_key_is_signed_by_the_one_it_replaces(berlin, stranger, tmp_path):
    for place, before in (("a", berlin), ("b", stranger), ("c", None)):
        (tmp_path / place).mkdir()
        write_site_key(tmp_path / place, "berlin", before=before)
    old, texts = berlin.certificate, [(tmp_path / p / "site.pub").read_text() for p in "abc"]
    assert [takes_the_place_of(old, text) for text in texts] == [True, False, False]
    block = texts[0][texts[0].index("-----BEGIN DPFEDC") :]
    certificate = texts[2]
    assert not takes_the_place_of(old, certificate + block)  # of another certificate
    assert not takes_the_place_of(old, texts[0].replace("\n-----END DPFEDC", "%\n-----END DPFEDC"))


@pytest.mark.parametrize("text", ["", "ssh-rsa AAAA x", "hello", "-----BEGIN CERTIFICATE-----\nx"])
def test_other_texts_are_no_certificates(text):
    with pytest.raises(InvalidInput, match="not a certificate"):
        read_certificate(text.encode())


def test_a_key_of_another_kind_is_refused(tmp_path, berlin):
    from cryptography.hazmat.primitives.asymmetric import ec

    (tmp_path / "site.key").unlink()
    write_private(tmp_path / "site.key", private_pem(ec.generate_private_key(ec.SECP256R1())))
    with pytest.raises(InvalidInput, match="must hold an Ed25519 key"):
        Identity.read(tmp_path / "site.key", tmp_path / "site.pub")
    (tmp_path / "site.key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nx\n")
    with pytest.raises(InvalidInput, match="gets a new one by `dpfedc site rotate-key`"):
        Identity.read(tmp_path / "site.key", tmp_path / "site.pub")


def test_a_certificate_of_another_key_is_refused(tmp_path, berlin, stranger):
    with pytest.raises(InvalidInput, match="must belong to"):
        Identity.read(berlin.key_file, stranger.certificate_file)
