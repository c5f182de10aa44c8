"""A process with a queue on disk: `python worker.py submit|resume FILE URL`."""

from __future__ import annotations

import sys

from onetake.queue import Actions, Queue, QueuedRequest, SqliteStore

mode, path, url = sys.argv[1:]
actions = Actions(
    confirm=lambda _intent, _response: print("applied", flush=True),
    revert=lambda _intent, _error: print("reverted", flush=True),
)
with Queue(SqliteStore(path), actions=lambda _: actions) as queue:
    if mode == "submit":
        headers = {"Content-Type": "application/json"}
        queue.submit("cart", QueuedRequest(url, headers=headers, body='{"amount":10}'), actions)
    queue.idle()
