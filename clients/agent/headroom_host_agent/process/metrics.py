"""What a scrape of the agent reads, on the loopback address alone (spec hosts, D.13)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

LOOPBACK = "127.0.0.1"
PREFIX = "headroom_agent"
Reading = tuple[str, str, Mapping[str, str], float]  # name, kind, labels, value


class Jobs:
    """Counts jobs by type; safe to use from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[int, float, int]] = {}

    def add(self, kind: str, seconds: float, is_well: bool) -> None:  # noqa: FBT001 - engine's hook
        """Count one job."""
        with self._lock:
            done, total, failed = self._counts.get(kind, (0, 0.0, 0))
            self._counts[kind] = (done + 1, total + seconds, failed + (not is_well))

    def readings(self) -> Iterable[Reading]:
        """Return what was counted."""
        with self._lock:
            counts = sorted(self._counts.items())
        for kind, (done, total, failed) in counts:
            labels = {"type": kind}
            yield "job_seconds_sum", "counter", labels, total
            yield "job_seconds_count", "counter", labels, done
            yield "job_failures_total", "counter", labels, failed


def exposition(readings: Iterable[Reading]) -> str:
    """Return readings as Prometheus reads them; those of one name together."""
    by_name: dict[str, list[str]] = {}
    for name, kind, labels, value in readings:
        full = f"{PREFIX}_{name}"
        lines = by_name.setdefault(full, [f"# TYPE {full} {kind}"])
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in sorted(labels.items()))
        lines.append(f"{full}{{{told}}} {value:g}" if told else f"{full} {value:g}")
    return "".join(f"{line}\n" for lines in by_name.values() for line in lines)


def serve(port: int, read: Callable[[], Iterable[Reading]], stop: threading.Event) -> int:
    """Serve ``/metrics`` until ``stop`` is set, in a thread of its own; return the port.

    Raises:
        OSError: The port is taken.
    """
    from http.server import (  # noqa: PLC0415 - megabytes that few agents need
        BaseHTTPRequestHandler,
        ThreadingHTTPServer,
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path.split("?")[0] == "/metrics"
            body = exposition(read()).encode() if is_known else b""
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    server.daemon_threads = True

    def run() -> None:
        threading.Thread(target=server.serve_forever, args=(1.0,), daemon=True).start()
        stop.wait()
        server.shutdown()
        server.server_close()

    threading.Thread(target=run, name="metrics", daemon=True).start()
    return int(server.server_address[1])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
