"""The stores that runtimes share, each as a fresh one of little pages; a real Redis among them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lmprog.runtime.tier.page_store import PageRecords, RecordFormat
from lmprog.runtime.tier.shared_pages import RedisPages, SharedFolder, SharedPageFile

PAGE, PAGE_BYTES = 4, 300
IDENTITY = b"i" * 32
Opened = Callable[..., PageRecords]

SERVER = shutil.which("valkey-server") or shutil.which("redis-server")


@contextmanager
def redis_server(*options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of this test alone: its address, and its process."""
    assert SERVER is not None
    with tempfile.TemporaryDirectory(prefix="lmprog-redis-") as folder:
        place = Path(folder) / "s"
        process = subprocess.Popen(
            [SERVER, "--port", "0", "--unixsocket", str(place), "--save", "", *options],
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        try:
            for _ in range(1000):
                with socket.socket(socket.AF_UNIX) as tried:
                    if not tried.connect_ex(str(place)):
                        break
                time.sleep(0.01)
            yield f"unix://{place}", process
        finally:
            process.kill()
            process.wait()


def opener(kind: str, folder: Path, url: str = "") -> Opened:
    """Opens the same store each time, as other runtimes would."""

    def opened(identity: bytes = IDENTITY, most_bytes: int = 1 << 20) -> PageRecords:
        form = RecordFormat(PAGE, PAGE_BYTES, identity)
        if kind == "machine":
            return SharedPageFile(folder / f"{identity.hex()}.shared", identity, form, most_bytes)
        if kind == "folder":
            return SharedFolder(folder, identity, form, most_bytes)
        return RedisPages(url, identity, form)

    return opened
