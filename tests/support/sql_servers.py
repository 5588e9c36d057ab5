"""Private MariaDB and PostgreSQL servers on free ports, made from the installed programs.

Each server lives in its own directory, keeps nothing durable (fsync is off) and is ended by its
process id. Starting takes seconds: fixtures keep one per test session (`tests/conftest.py`).
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pymysql

START_TIMEOUT_S = 90.0
_numbers = itertools.count(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class SqlServer:
    """A running server; `database()` makes a new empty database and returns its URL."""

    kind: str  # "mysql" or "postgres"
    port: int
    socket: str
    process: subprocess.Popen[bytes]
    command: list[str]
    log: Path
    _counter: Iterator[int] = field(default_factory=lambda: _numbers)

    def new_database(self) -> str:
        """The name of a database that has just been made."""
        name = f"jfs{next(self._counter)}"
        self.run(f"CREATE DATABASE {name}")
        return name

    def database(self) -> str:
        return self.url(self.new_database())

    def url(self, name: str, user: str = "jfs", password: str = "secret") -> str:
        if self.kind == "mysql":
            return f"mysql://{user}:{password}@(127.0.0.1:{self.port})/{name}"
        return f"postgres://{user}:{password}@127.0.0.1:{self.port}/{name}?sslmode=disable"

    def connect(self, database: str = "") -> Any:
        """An administrator's connection of the server's own driver, with autocommit."""
        if self.kind == "mysql":
            return pymysql.connect(
                unix_socket=self.socket,
                user="root",
                database=database or None,
                autocommit=True,
            )
        return psycopg.connect(
            host=os.path.dirname(self.socket),
            port=self.port,
            user="postgres",
            dbname=database or "postgres",
            autocommit=True,
        )

    def run(self, *statements: str, database: str = "") -> list[tuple[Any, ...]]:
        """Execute as administrator; the rows of the last statement if it has any."""
        with contextlib.closing(self.connect(database)) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def stop(self, *, kill: bool = False) -> None:
        """End the server; `kill` gives it no chance to tell its clients."""
        if self.process.poll() is None:
            if kill:
                self.process.kill()
            elif self.kind == "postgres":
                self.process.send_signal(2)  # SIGINT: "fast" shutdown, does not wait for clients
            else:
                self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)

    def start(self) -> None:
        """Start again after `stop`, with the same port and data."""
        self.process = _spawn(self.command, self.log)
        _wait_ready(self)


@contextlib.contextmanager
def mariadb_server() -> Iterator[SqlServer]:
    """A MariaDB with a user jfs:secret who may do everything."""
    with _home("mysql") as home:
        data, sock, port = home / "data", str(home / "s.sock"), free_port()
        owner = ["--user=mysql"] if os.geteuid() == 0 else []
        install = ["mariadb-install-db", *owner, f"--datadir={data}", "--skip-test-db"]
        install.append("--auth-root-authentication-method=normal")
        _check(install, home / "install.log")
        command = [
            _program("mariadbd", "/usr/sbin"),
            "--no-defaults",
            *owner,
            f"--datadir={data}",
            f"--socket={sock}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--pid-file={home}/pid",
            "--skip-log-bin",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-flush-method=nosync",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--max-connections=300",
        ]
        server = SqlServer(
            "mysql", port, sock, _spawn(command, home / "log"), command, home / "log"
        )
        with _ending(server):
            _wait_ready(server)
            server.run(
                "CREATE USER 'jfs'@'%' IDENTIFIED BY 'secret'",
                "GRANT ALL ON *.* TO 'jfs'@'%' WITH GRANT OPTION",
            )
            yield server


@contextlib.contextmanager
def postgres_server() -> Iterator[SqlServer]:
    """A PostgreSQL with a superuser jfs:secret; passwords are checked over TCP."""
    with _home("postgres") as home:
        data, port = home / "data", free_port()
        bin_dir = _postgres_bin()
        run_as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        run_as = run_as if os.geteuid() == 0 else []
        init = [*run_as, f"{bin_dir}/initdb", "-D", str(data), "-U", "postgres"]
        init += ["-E", "UTF8", "--locale=C", "-N", "--auth-local=trust"]
        init.append("--auth-host=scram-sha-256")
        _check(init, home / "install.log")
        command = [
            *run_as,
            f"{bin_dir}/postgres",
            "-D",
            str(data),
            "-p",
            str(port),
            "-k",
            str(home),
        ]
        for setting in (
            "listen_addresses=127.0.0.1",
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
            "max_connections=300",
            "deadlock_timeout=100ms",
        ):
            command += ["-c", setting]
        sock = str(home / f".s.PGSQL.{port}")
        log = home / "log"
        server = SqlServer("postgres", port, sock, _spawn(command, log), command, log)
        with _ending(server):
            _wait_ready(server)
            server.run("CREATE ROLE jfs LOGIN SUPERUSER PASSWORD 'secret'")
            yield server


def _postgres_bin() -> str:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    path = found[-1] if found else shutil.which("postgres")
    assert path, "PostgreSQL is not installed"
    return os.path.dirname(path)


def _program(name: str, directory: str) -> str:
    path = shutil.which(name) or f"{directory}/{name}"
    assert os.path.exists(path), f"{name} is not installed"
    return path


@contextlib.contextmanager
def _home(user: str) -> Iterator[Path]:
    """A short path (sockets allow some 100 bytes) that belongs to the user of the server."""
    home = Path(tempfile.mkdtemp(prefix="jfssql"))
    try:
        if os.geteuid() == 0:
            shutil.chown(home, user, user)
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def _ending(server: SqlServer) -> Iterator[None]:
    try:
        yield
    finally:
        server.stop()


def _check(command: list[str], log: Path) -> None:
    with log.open("wb") as out:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=START_TIMEOUT_S,
            check=False, cwd="/",
        )  # fmt: skip
    assert done.returncode == 0, log.read_text(errors="replace")


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/")


def _wait_ready(server: SqlServer) -> None:
    driver_error: Callable[..., Any] | Any = (pymysql.Error, psycopg.Error, OSError)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            server.connect().close()
            return
        except driver_error as error:
            text = server.log.read_text(errors="replace")
            assert server.process.poll() is None, text
            if time.monotonic() > deadline:
                raise AssertionError(f"server does not answer: {error}\n{text}") from error
            time.sleep(0.05)
