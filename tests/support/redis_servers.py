"""Private Redis servers for tests: one server, TLS, a cluster of three, a sentinel.

Each is a context manager that yields once the server answers and ends it by its process id.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

WAIT_S = 60.0


@dataclass
class RedisServer:
    """A running server. `stop` and `start` keep its address and its directory."""

    port: int
    directory: Path
    arguments: list[str]
    password: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket_path(self) -> Path:
        return self.directory / "redis.sock"

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def unix_url(self, db: int = 0) -> str:
        return f"unix://{self.socket_path}?db={db}"

    def client(self, db: int = 0) -> redis.Redis:
        """An independent client for looking at raw keys."""
        return redis.Redis(
            unix_socket_path=str(self.socket_path), db=db, password=self.password or None
        )

    def start(self) -> None:
        log = (self.directory / "redis.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                ["redis-server", *self.arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, f"redis-server on port {self.port}")

    def stop(self) -> None:
        """End it at once, as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT_S)
            self.process = None

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            log = (self.directory / "redis.log").read_text(errors="replace")
            raise AssertionError(f"redis-server ended: {log[-2000:]}")
        with contextlib.closing(self.client()) as client:
            try:
                return bool(client.ping())
            except redis.exceptions.RedisError:
                return False


def free_port() -> int:
    """A TCP port nobody listens on, with port + 10000 (the cluster bus) free too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if port + 10000 > 65535:
                port -= 20000
            if port < 1024:
                continue
        if _is_free(port) and _is_free(port + 10000):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(claim: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not ready after {timeout_s:.0f} s")
        time.sleep(0.02)


@contextlib.contextmanager
def redis_server(
    *options: str, password: str = "", persistent: bool = False
) -> Iterator[RedisServer]:
    """One server on a free port and a Unix socket; `persistent` keeps its data over `stop`."""
    with tempfile.TemporaryDirectory(prefix="jfs-redis-", ignore_cleanup_errors=True) as path:
        server = _started(Path(path), password, persistent, options)
        try:
            yield server
        finally:
            server.stop()


def _started(
    directory: Path, password: str, persistent: bool, options: tuple[str, ...]
) -> RedisServer:
    """Another port is tried where somebody took the free one meanwhile."""
    for last in (False, False, True):
        server = _server(directory, password, persistent, options)
        try:
            server.start()
            break
        except AssertionError:
            server.stop()
            if last:
                raise
    return server


def _server(
    directory: Path, password: str, persistent: bool, options: tuple[str, ...]
) -> RedisServer:
    port = free_port()
    arguments = [
        *("--port", str(port), "--bind", "127.0.0.1", "--unixsocket", "redis.sock"),
        *("--save", "", "--daemonize", "no", "--appendonly", "yes"),
        *("--appendfsync", "always" if persistent else "no", "--databases", "64"),
    ]
    if password:
        arguments += ["--requirepass", password]
    return RedisServer(port, directory, [*arguments, *options], password)


@dataclass(frozen=True)
class Certificates:
    """Files of an authority, and of a certificate it made for localhost and 127.0.0.1."""

    ca: Path
    certificate: Path
    key: Path


@contextlib.contextmanager
def tls_server(*, client_certificates: bool = False) -> Iterator[tuple[int, Certificates]]:
    """(TLS port, certificates) of a server."""
    with tempfile.TemporaryDirectory(prefix="jfs-tls-", ignore_cleanup_errors=True) as path:
        files = make_certificates(Path(path))
        port = free_port()
        options = (
            *("--tls-port", str(port), "--tls-ca-cert-file", str(files.ca)),
            *("--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key)),
            *("--tls-auth-clients", "yes" if client_certificates else "no"),
        )
        with redis_server(*options):
            yield port, files


def make_certificates(directory: Path) -> Certificates:
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = _name("test authority")
    ca = _certificate(ca_name, ca_name, ca_key, ca_key, authority=True)
    leaf = _certificate(_name("localhost"), ca_name, key, ca_key, authority=False)
    files = Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    files.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
    )
    if authority:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    else:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())


@dataclass(frozen=True)
class RedisCluster:
    servers: tuple[RedisServer, ...]

    def url(self, db: int = 0) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis://{hosts}/{db}"

    def client(self) -> redis.RedisCluster:
        return redis.RedisCluster(host="127.0.0.1", port=self.servers[0].port)

    def holder(self, key: bytes) -> RedisServer:
        """The server that holds the slot of `key`."""
        with contextlib.closing(self.client()) as client:
            port = client.get_node_from_key(key).port
        return next(server for server in self.servers if server.port == port)


@contextlib.contextmanager
def redis_cluster(nodes: int = 3) -> Iterator[RedisCluster]:
    """A cluster of masters that share all slots."""
    options = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
    with contextlib.ExitStack() as stack:
        servers = tuple(stack.enter_context(redis_server(*options)) for _ in range(nodes))
        clients = [stack.enter_context(contextlib.closing(one.client())) for one in servers]
        for number, client in enumerate(clients):
            begin, end = (16384 * one // nodes for one in (number, number + 1))
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        wait_until(lambda: all(_is_whole(one, nodes) for one in clients), "redis cluster")
        yield RedisCluster(servers)


def _is_whole(client: redis.Redis, nodes: int) -> bool:
    facts = str(client.execute_command("CLUSTER", "INFO"))
    slots = client.execute_command("CLUSTER", "SLOTS")
    is_ok = any(form in facts for form in ("cluster_state:ok", "'cluster_state': 'ok'"))
    return is_ok and len(slots) == nodes


@dataclass(frozen=True)
class Sentinel:
    master: RedisServer
    replica: RedisServer
    port: int
    name: str

    def url(self, db: int = 0) -> str:
        return f"redis://{self.name},127.0.0.1:{self.port}/{db}"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True)

    def fail_over(self) -> None:
        """Make the replica the master, and the old master a replica of it."""
        with (
            contextlib.closing(self.client()) as client,
            contextlib.closing(self.master.client()) as old,
        ):
            client.execute_command("SENTINEL", "FAILOVER", self.name)
            wait_until(lambda: self._master_port(client) == self.replica.port, "fail-over")
            old.replicaof("127.0.0.1", self.replica.port)  # the sentinel does so in ten seconds

    def _master_port(self, client: redis.Redis) -> int:
        reply = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        return int(reply["port"] if isinstance(reply, dict) else reply[1])


@contextlib.contextmanager
def redis_sentinel(name: str = "themaster") -> Iterator[Sentinel]:
    """A sentinel that watches a master and its replica."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(redis_server())
        replica = stack.enter_context(
            redis_server(
                "--replicaof", "127.0.0.1", str(master.port), "--repl-diskless-sync-delay", "0"
            )
        )
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jfs-sentinel-")))
        port = free_port()
        config = path / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {path}\n"
            f"sentinel monitor {name} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {name} 5000\n"
        )
        log = stack.enter_context((path / "sentinel.log").open("wb"))
        process = subprocess.Popen(
            ["redis-server", str(config), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "LC_ALL": "C"},
        )
        stack.callback(process.wait, WAIT_S)
        stack.callback(process.kill)
        sentinel = Sentinel(master, replica, port, name)
        wait_until(lambda: _knows_replica(sentinel), "sentinel")
        yield sentinel


def _knows_replica(sentinel: Sentinel) -> bool:
    with contextlib.closing(sentinel.client()) as client:
        try:
            reply = client.execute_command("SENTINEL", "REPLICAS", sentinel.name)
        except redis.exceptions.RedisError:
            return False
    facts = str(reply)  # parsed or flat, as the version of redis-py has it
    forms = ("'master-link-status': 'ok'", "'master-link-status', 'ok'")
    return any(form in facts for form in forms)
