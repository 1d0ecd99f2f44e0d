"""Certificates and keys: what they say, who may read them, and what a signature proves."""

import ssl

import pytest
from cryptography import x509

from dpfedc.deployment.certificates import write_server_certificates
from dpfedc.deployment.keys import (
    fingerprint,
    is_signed_answer,
    read_public_key,
    read_site_key,
    require_private,
    sign_answer,
    write_site_key,
)
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
        read_site_key(tmp_path / "site.key")
    with pytest.raises(DataUnavailable, match="no such key file"):
        require_private(tmp_path / "none.key")


@pytest.fixture
def pair(tmp_path):
    write_site_key(tmp_path, "berlin")
    line = (tmp_path / "site.pub").read_text()
    return read_site_key(tmp_path / "site.key"), line


def test_a_signature_holds_for_one_key_one_request_and_one_answer(pair, tmp_path):
    key, line = pair
    signature = sign_answer(key, b"request", b"answer")
    public = read_public_key(line)
    assert is_signed_answer(public, b"request", b"answer", signature)
    assert not is_signed_answer(public, b"another", b"answer", signature)
    assert not is_signed_answer(public, b"request", b"another", signature)
    assert not is_signed_answer(public, b"request", b"answer", signature[:-1] + b"\0")
    assert not is_signed_answer(public, b"requestanswer", b"", signature)
    (tmp_path / "other").mkdir()
    write_site_key(tmp_path / "other", "berlin")
    stranger = read_public_key((tmp_path / "other" / "site.pub").read_text())
    assert not is_signed_answer(stranger, b"request", b"answer", signature)


def test_a_fingerprint_is_of_the_key_and_not_of_the_name_behind_it(pair):
    _, line = pair
    assert line.split()[2] == "berlin"
    assert fingerprint(line) == fingerprint(" ".join(line.split()[:2]))
    assert len(fingerprint(line)) == 32


@pytest.mark.parametrize("line", ["", "ssh-rsa AAAA x", "hello"])
def test_other_lines_are_no_public_keys(line):
    with pytest.raises(InvalidInput, match="not a public key"):
        read_public_key(line)


def test_a_key_of_another_kind_is_refused():
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    line = (
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    ).decode()
    with pytest.raises(InvalidInput, match="must be ECDSA P-384"):
        read_public_key(line)
