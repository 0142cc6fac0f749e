"""The port of a Flower round holds against those who connect and ask nothing, or send without end."""

import datetime
import socket
import ssl
import threading
import time

import pytest

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("cryptography")

from consilience.federated.flower import gate as gates  # noqa: E402
from consilience.federated.flower import listener as listeners  # noqa: E402
from consilience.federated.flower.gate import FleetGate  # noqa: E402

REQUEST = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab"


def certificate(folder):
    """Write a certificate of localhost and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    (folder / "server.crt").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return {"ssl_certfile": folder / "server.crt", "ssl_keyfile": folder / "server.key"}


async def application(_scope, receive, send):
    """Read a body and answer."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] != "http.disconnect":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Start a server with short times and few connections; return its port and the folder of the round."""
    monkeypatch.setattr(listeners, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(listeners, "REQUEST_SECONDS", 0.5)
    (tmp_path / "sites").mkdir()
    running = []

    def start(tls=False, most=64):
        gate = FleetGate(application, 10**9, tmp_path)
        options = certificate(tmp_path) if tls else {}
        config = uvicorn.Config(gate, loop="asyncio", ws="none", log_level="error", **options)
        server = listeners.impatient_server(config)
        listener = listeners.listen("127.0.0.1", 0)
        listener.refused, listener.most_per_address = gate.note_address, most
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        running.append((server, thread))
        return listener.getsockname()[1], tmp_path

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(10)


def connected(port, tls=False):
    """Return a connection."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=5)
    if not tls:
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def answer(port, request=REQUEST, tls=False):
    """Return the status of the answer to a request."""
    with connected(port, tls) as one:
        one.sendall(request)
        return int(one.recv(1000).split()[1])


def is_closed_within(connection, seconds):
    """Return whether the other end closes a connection in time."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_an_address_holds_a_few_connections_and_no_more(serve):
    port, folder = serve(most=20)
    held = [connected(port) for _ in range(200)]
    assert sum(is_closed_within(one, 0.05) for one in held) >= 170
    assert (folder / "sites" / "too-many-connections-127.0.0.1").is_dir()
    for one in held:
        one.close()
    time.sleep(0.2)
    assert answer(port) == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v1/fl", REQUEST[:60], REQUEST + b"POST /v1"])
def test_a_connection_without_a_request_is_cut_off(serve, sent):
    port, _ = serve()
    with connected(port) as one:
        one.sendall(sent)
        if sent.startswith(REQUEST):
            assert b"200" in one.recv(1000)
        assert is_closed_within(one, 3)
    assert answer(port) == 200


def test_a_handshake_that_does_not_come_is_cut_off_and_others_are_served(serve):
    port, _ = serve(tls=True)
    idle = [connected(port) for _ in range(30)]
    silent = [connected(port, tls=True) for _ in range(5)]
    assert answer(port, tls=True) == 200
    closed = [is_closed_within(one, 3) for one in (*idle, *silent)]
    for one in (*idle, *silent):
        one.close()
    assert all(closed)


def test_a_body_without_a_length_is_refused_and_not_read(serve):
    port, _ = serve()
    with connected(port) as one:
        one.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        assert b" 411 " in one.recv(1000)
        with pytest.raises(OSError):  # noqa: PT011  (the connection is closed)
            one.sendall(1000 * (b"10000\r\n" + bytes(65536) + b"\r\n"))


def test_a_body_that_does_not_come_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(gates, "BODY_SECONDS", 0.5)
    port, _ = serve()
    with connected(port) as one:
        one.sendall(REQUEST.replace(b"content-length: 2", b"content-length: 2000"))
        one.settimeout(5)
        assert b" 500 " in one.recv(1000)  # the application saw no more than a connection that ends
    assert answer(port) == 200


def test_bodies_are_bounded_together(serve, monkeypatch):
    monkeypatch.setattr(gates, "_MAX_HELD_BYTES", 1000)
    port, _ = serve()
    with connected(port) as one:
        one.sendall(REQUEST.replace(b"content-length: 2", b"content-length: 9000")[:-2] + bytes(5000))
        time.sleep(0.3)
        assert answer(port) == 503
        one.sendall(bytes(4000))
        assert b"200" in one.recv(1000)
    assert answer(port) == 200
