"""Submit intents to a queue on disk, and log their ends: `effects_worker.py FOLDER URL COUNT`."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from onetake import Budget, Intent, Limits, Onetake
from onetake.queue import Actions, Queue, QueuedIntent, QueuedRequest, SqliteStore

folder, url, count = sys.argv[1:]
path = Path(folder, "log")
ended = path.read_text() if path.exists() else ""
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
writing = threading.Lock()


def end(intent: QueuedIntent, word: str) -> None:
    with writing:
        os.write(log, f"{intent.key} {word}\n".encode())


def confirm(intent: QueuedIntent, _: Any) -> None:
    end(intent, "applied")


def revert(intent: QueuedIntent, _: Any) -> None:
    end(intent, "reverted")


actions = Actions(confirm=confirm, revert=revert)
onetake = Onetake(Limits(attempts_max=20, backoff_base_seconds=0.02), budget=Budget(1000, 1))
store = SqliteStore(Path(folder, "queue.db"))
stored = {one.key for one in store.list()}
with Queue(store, onetake, actions=lambda _: actions) as queue:
    for number in range(int(count)):
        # A user who acts again after a restart acts on the same thing, so it has the same key.
        intent = Intent.from_ids(folder, str(number))
        if intent.key in stored or intent.key in ended:
            continue
        request = QueuedRequest(url, body="decline" if number % 10 == 0 else f"amount={number}")
        queue.submit(f"cart-{number % 7}", request, actions, intent=intent)
    queue.idle()
