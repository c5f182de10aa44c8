"""Count effects through a gateway whose responses are lost: `python effects.py PROXY`.

Sends 1,000 intents with httpx and 1,000 with requests, and then 500 through a queue whose process
is killed 50 times. Prints one JSON line each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import requests

from onetake import Budget, Limits, Onetake
from onetake.httpx import OnetakeTransport
from onetake.queue import SqliteStore
from onetake.requests import OnetakeAdapter

INTENTS = 1000
AT_ONCE = 8
QUEUED = 500
KILLS = 50

PROXY = sys.argv[1]
CONTROL = httpx.Client(verify=False, timeout=60)


def effects() -> dict[str, int]:
    counted: dict[str, int] = CONTROL.get(f"{PROXY}/-/effects").json()
    return counted


def count(what: str, intents: int, work: Callable[[], dict[str, Any]]) -> bool:
    """Run `work` and compare the number of effects with the number of intents."""
    before, began = effects(), time.monotonic()
    more = work()
    seconds = round(time.monotonic() - began, 1)
    after = effects()
    keys, runs = after["keys"] - before["keys"], after["runs"] - before["runs"]
    is_exact = keys == runs == intents and after["runs_of_one_key_max"] == 1
    line = {"client": f"python {what}", "intents": intents, "keys": keys, "effects": runs}
    line |= {"lost": after["lost"] - before["lost"], "seconds": seconds, **more}
    line["ok"] = is_exact and more["ok"]
    print(json.dumps(line), flush=True)
    return bool(line["ok"])


def onetake() -> Onetake:
    limits = Limits(attempts_max=20, backoff_base_seconds=0.02)
    return Onetake(limits, budget=Budget(INTENTS, 1))


def spread(send: Callable[[int], int]) -> dict[str, Any]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        statuses = list(pool.map(send, range(INTENTS)))
    return {"ok": statuses == [201] * INTENTS}


def with_httpx() -> dict[str, Any]:
    transport = OnetakeTransport(onetake(), httpx.HTTPTransport(verify=False))
    with httpx.Client(transport=transport, timeout=None) as client:
        return spread(lambda n: client.post(f"{PROXY}/charges", content=f"amount={n}").status_code)


def with_requests() -> dict[str, Any]:
    adapter = OnetakeAdapter(onetake(), pool_maxsize=AT_ONCE)
    local = threading.local()

    def send(number: int) -> int:
        if not hasattr(local, "session"):
            local.session = requests.Session()
            local.session.mount("http://", adapter)
        status: int = local.session.post(f"{PROXY}/charges", data=f"amount={number}").status_code
        return status

    return spread(send)


def with_queue() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        log, kills = Path(folder, "log"), 0
        worker = str(Path(__file__).with_name("effects_worker.py"))
        command = [sys.executable, worker, folder, f"{PROXY}/charges", str(QUEUED)]

        def settled() -> list[str]:
            return log.read_text().splitlines() if log.exists() else []

        while True:
            with subprocess.Popen(command) as child:
                target = (kills + 1) * QUEUED / (KILLS + 2)
                while kills < KILLS and child.poll() is None and len(settled()) < target:
                    time.sleep(0.002)
                if kills < KILLS and child.poll() is None:
                    child.kill()
                    kills += 1
            if child.returncode == 0:
                break
        ends = dict(line.split() for line in settled())
        applied = sum(end == "applied" for end in ends.values())
        reverted = sum(end == "reverted" for end in ends.values())
        store = SqliteStore(Path(folder, "queue.db"))
        left = len(store.list())
        store.close()
        is_right = (kills, applied + reverted, reverted, left) == (KILLS, QUEUED, QUEUED // 10, 0)
        return {
            "kills": kills,
            "applied": applied,
            "reverted": reverted,
            "left": left,
            "ok": is_right,
        }


if __name__ == "__main__":
    results = [
        count("httpx", INTENTS, with_httpx),
        count("requests", INTENTS, with_requests),
        count("queue", QUEUED, with_queue),
    ]
    sys.exit(0 if all(results) else 1)
