"""nginx with the configuration of `deploy/`, in front of two servers, for tests on loopback."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
MISSING = "nginx is not installed (as root: apt-get install nginx-light)"
MAIN = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
{user}
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    include {folder}/site.conf;
}}
"""


def free_ports(count: int) -> list[int]:
    """Return ports that nothing uses at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def write_configuration(folder: Path, port: int, servers: Sequence[int]) -> Path:
    """Write the configuration of `deploy/`, with other ports, inside a minimal main file."""
    text = CONFIGURATION.read_text()
    for shown, used in (("listen 80;", f"listen 127.0.0.1:{port};"), (":8001", f":{servers[0]}")):
        assert text.count(shown) == 1
        text = text.replace(shown, used)
    (folder / "site.conf").write_text(text.replace(":8002", f":{servers[1]}"))
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "main.conf").write_text(MAIN.format(folder=folder, user=user))
    return folder / "main.conf"


@contextmanager
def nginx(folder: Path, port: int, servers: Sequence[int]) -> Iterator[str]:
    """Run nginx, and yield its address."""
    assert NGINX is not None, MISSING
    command = [NGINX, "-c", str(write_configuration(folder, port, servers)), "-p", str(folder), "-e", "stderr"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as proxy:
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert proxy.poll() is None, (folder / "error.log").read_text()
                    time.sleep(0.02)
            yield f"http://127.0.0.1:{port}"
        finally:
            proxy.send_signal(signal.SIGTERM)


class RestartableServer:
    """`allyouneed serve` on a fixed port. It can be restarted."""

    def __init__(self, port: int, arguments: Sequence[str], log: Path) -> None:
        self.port, self._arguments, self._log = port, list(arguments), log
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "allyouneed", "serve", *self._arguments, "--port", str(self.port)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*command, "--trust-proxy", "127.0.0.1", "--allow-host", "*", "--access-log", "json"],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._wait_until_ready(process)
        return process

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=300):
                    return
            except OSError:
                assert process.poll() is None, self._log.read_text()
                time.sleep(0.1)

    def restart(self) -> int:
        """Stop the server with SIGTERM, start it again, wait until it is ready, and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=300)
        self.process = self._start()
        return status

    def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


@contextmanager
def two_servers_behind_nginx(
    folder: Path, arguments: Sequence[str]
) -> Iterator[tuple[str, list[RestartableServer], Path]]:
    """Run two servers and nginx, and yield its address, the servers and their log."""
    port, *ports = free_ports(3)
    log, servers = folder / "servers.log", list[RestartableServer]()
    try:
        for one in ports:
            servers.append(RestartableServer(one, arguments, log))
        with nginx(folder, port, ports) as url:
            yield url, servers, log
    finally:
        for server in servers:
            server.kill()
