"""Send bodies that are expensive to parse, to validate or to complain about, and measure how long others wait.

    python tests/faults/hostile_requests.py --repeats 3

Sends every body of `tests/serve/hostile_bodies.py` to a real server, with a key and without one, while another process
polls `/health` without a pause. Prints for each body the status, the bytes of the response, and how long `/health` took
at most; of the repeats, the one with the shortest wait counts, since the machine may be busy with other work. Exits
with 1 if an error has more than 4 KiB, if a status is 5xx, or if `/health` took longer than `--most`.
"""

import argparse
import http.client
import multiprocessing
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from hostile_bodies import all_bodies
from serve_folders import language_model, translator

LARGEST_ERROR = 4096  # bytes
KEY = "open-sesame"


def poll(port: int, stop: Event, slowest: "multiprocessing.Queue[float]") -> None:
    """Poll /health until `stop` is set, then report the slowest response in seconds."""
    most, connection = 0.0, http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    while not stop.is_set():
        started = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        most = max(most, time.perf_counter() - started)
    slowest.put(most)


def send(port: int, path: str, kind: str, content: bytes, key: str | None) -> tuple[int, int]:
    """Return the status and the size of the response."""
    headers = {"Content-Type": kind} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", path, content, headers)
        response = connection.getresponse()
        return response.status, len(response.read())
    finally:
        connection.close()


def measure(port: int, path: str, kind: str, content: bytes, key: str | None) -> tuple[float, int, int]:
    """Return how long /health took at most while a body was sent, and the status and the size of its response."""
    stop: Event = multiprocessing.Event()
    slowest: multiprocessing.Queue[float] = multiprocessing.Queue()
    poller = multiprocessing.Process(target=poll, args=(port, stop, slowest))
    poller.start()
    time.sleep(0.05)
    try:
        status, size = send(port, path, kind, content, key)
    finally:
        stop.set()
    seconds = slowest.get()
    poller.join()
    return seconds, status, size


def run(port: int, repeats: int, most: float, only: str) -> list[str]:
    """Send everything, print a table, and return what is wrong."""
    wrong = []
    for path, name, kind, content in all_bodies():
        for key in (KEY, None):
            what = f"{path} {kind.partition(';')[0].partition('/')[2]} {name}, {'a' if key else 'no'} key"
            if only not in what:
                continue
            seconds, status, size = min(measure(port, path, kind, content, key) for _ in range(repeats))
            print(f"{status} {size:7,} bytes, /health {1000 * seconds:6.0f} ms: {what}", flush=True)
            wrong += [f"{what}: {size:,} bytes"] if status >= 400 and size > LARGEST_ERROR else []
            wrong += [f"{what}: {status}"] if status >= 500 or (key is None and status < 400) else []
            wrong += [f"{what}: {seconds:.3f} s"] if seconds > most else []
    return wrong


def main() -> int:
    """Start a server, send everything, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="send only bodies whose line contains this text")
    parser.add_argument("--most", type=float, default=0.2, help="seconds that /health may take")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        keys = Path(temporary) / "keys"
        keys.write_text(KEY)
        folders = [language_model(Path(temporary)), translator(Path(temporary), "numbers")]
        command = [sys.executable, "-m", "allyouneed", "serve", *map(str, folders), "--port", "0", "--keys", str(keys)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            try:
                port = int(server.stdout.readline().split("http://")[1].split()[0].split(":")[1])
                wrong = run(port, options.repeats, options.most, options.only)
            finally:
                server.kill()
    print("\n".join(["FAILED:", *wrong]) if wrong else "ok")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
