"""Callers that do not keep to the rules, and servers and proxies that do not."""

import contextlib
import datetime
import http.client
import select
import socket
import ssl
import threading

from aiohttp.web_protocol import RequestHandler

from dpfedc.deployment.keys import private_pem
from dpfedc.deployment.mailbox.signed_calls import HEADER, signed_header
from support.mailboxes import PATIENCE


def bare_context(certificate=None, key=None, *, most=None):
    """Return the TLS side of a caller that trusts anyone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if most is not None:
        context.maximum_version = most
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def context_of(identity, **settings):
    return bare_context(identity.certificate_file, identity.key_file, **settings)


class Caller:
    """One connection to a server; it says what it likes."""

    def __init__(self, port, context):
        plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        try:
            self._socket = context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise

    def send(self, data):
        self._socket.sendall(data)

    def rest(self):
        """Return what comes until the other side hangs up."""
        got = b""
        try:
            while data := self._socket.recv(65536):
                got += data
        except TimeoutError:
            raise
        except OSError:
            pass
        return got

    def response(self, method="POST"):
        """Return the status and text of the next response."""
        response = http.client.HTTPResponse(self._socket, method=method)
        response.begin()
        return response.status, response.read().decode("latin-1")

    def call(self, path, body=b"", **headers):
        self.send(head_of(path, len(body), **headers) + body)
        return self.response()

    def close(self):
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def head_of(path, length, **headers):
    """Return the head of a call."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1"]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def signed_call(world, name, path, body=b"", *, header=None, length=None):
    """Make a call at the port for proxies, and return status and text of the response."""
    if header is None:
        authority = world.authority()
        header = signed_header(world.identity(name), name, authority, path, body)
    with Caller(world.signed_port, bare_context()) as caller:
        headers = {HEADER: header} if header else {}
        caller.send(head_of(path, len(body) if length is None else length, **headers) + body)
        return caller.response()


def issued_by_an_enrolled_one(world):
    """Enrol a certificate that may sign others; return the files of one that it has signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    issuer, own = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name, key, signs):
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "madrid")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
            .sign(issuer, None)
            .public_bytes(Encoding.PEM)
        )

    world.folder.enrol(certificate("madrid", issuer, True).decode())
    files = world.home / "sub.crt", world.home / "sub.key"
    files[0].write_bytes(certificate("sub", own, False))
    files[1].write_bytes(private_pem(own))
    return files


class CountedData:
    """Counts what gets past the handshake of every server in this process."""

    def __init__(self, monkeypatch):
        self.n_bytes = 0
        right = RequestHandler.data_received

        def counted(handler, data):
            self.n_bytes += len(data)
            right(handler, data)

        monkeypatch.setattr(RequestHandler, "data_received", counted)


class _Listener:
    """Accepts connections until it is closed, each in a thread of its own."""

    def __init__(self):
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self._threads, self._sockets = [], []
        self._start(self._listen)

    def _start(self, work, *args):
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self):
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._door.accept()
                self._sockets.append(accepted)
                self._start(self._guarded, accepted)

    def _guarded(self, accepted):
        with contextlib.suppress(OSError, EOFError, ValueError):
            self._attend(accepted)
        accepted.close()

    def close(self):
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for each in tuple(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(PATIENCE)


class HostileServer(_Listener):
    """Has the server's certificate, and says to every call what `says` writes."""

    def __init__(self, certificate_files, says):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate_files)
        self._says, self.calls, self.n_sent = says, [], 0
        super().__init__()

    def _attend(self, accepted):
        with self._context.wrap_socket(accepted, server_side=True) as connection:
            self._sockets.append(connection)
            stream = connection.makefile("rb")
            while line := stream.readline():
                head = [line]
                while (more := stream.readline()).strip():
                    head.append(more)
                lengths = [h for h in head if h.lower().startswith(b"content-length")]
                stream.read(int(lengths[0].split(b":")[1]) if lengths else 0)
                self.calls.append(b"".join(head).decode())
                self._said(connection)

    def _said(self, connection):
        for piece in self._says(self):
            connection.sendall(piece)
            self.n_sent += len(piece)


class HostileListener(_Listener):
    """Has a server's certificate, and does with every connection what `says` does."""

    def __init__(self, certificate_files, says):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate_files)
        self._says, self.n_accepted = says, 0
        super().__init__()

    def _attend(self, accepted):
        self.n_accepted += 1
        with self._context.wrap_socket(accepted, server_side=True) as connection:
            self._sockets.append(connection)
            self._says(connection)


class HungUp(_Listener):
    """Hangs up as soon as a caller has begun its handshake."""

    def _attend(self, accepted):
        accepted.recv(1)


class Proxy(_Listener):
    """A proxy for CONNECT. With `opens` it opens TLS, and calls `target` instead."""

    def __init__(self, *, opens=None, target=None, authority=None):
        self._opens, self._target, self._authority = opens, target, authority
        self.asked, self.heard = [], bytearray()
        super().__init__()

    def _attend(self, accepted):
        stream = b""
        while not stream.endswith(b"\r\n\r\n"):
            byte = accepted.recv(1)
            if not byte:
                return
            stream += byte
        asked = stream.split()[1].decode()
        self.asked.append(asked)
        host, _, port = asked.rpartition(":")
        near, far = accepted, socket.create_connection((host, self._target or int(port)))
        self._sockets.append(far)
        accepted.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        if self._opens is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._opens)
            near = context.wrap_socket(accepted, server_side=True)
            far = ssl.create_default_context(cafile=self._authority).wrap_socket(
                far, server_hostname=host
            )
            self._sockets += [near, far]
        self._pass_on(near, far)

    def _pass_on(self, near, far):
        """Pass on what either side says; one thread, because TLS is not to be used by two."""
        try:
            while True:
                for source in select.select([near, far], [], [])[0]:
                    data = source.recv(65536)
                    while isinstance(source, ssl.SSLSocket) and source.pending():
                        data += source.recv(65536)
                    if not data:
                        return
                    self.heard += data
                    (far if source is near else near).sendall(data)
        finally:
            near.close()
            far.close()
