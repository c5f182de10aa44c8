"""An optimistic queue on SQLite.

An intent is stored with its key before it is sent. It is applied at once, sent in order per entity
until there is a definite answer, and reverted if the answer is a failure.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import httpx

from .call import Onetake
from .errors import CallError, Mismatch, OutcomeUnknown, Refused, StorageFailed
from .httpx import OnetakeTransport
from .keys import Intent

__all__ = ["Actions", "Queue", "QueueStore", "QueuedIntent", "QueuedRequest", "SqliteStore"]

Settled = Literal["applied", "reverted"]

_PAUSE_BASE_SECONDS = 1.0
_LOCK_PAUSE_SECONDS = 0.1
_LOG = logging.getLogger("onetake.queue")


@dataclass(frozen=True)
class QueuedRequest:
    """The request of an intent. Credentials do not belong in it: see `Onetake.headers`."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None


@dataclass(frozen=True)
class QueuedIntent:
    """An intent as it is stored."""

    key: str
    #: The thing that changes. Intents of one entity are sent in order.
    entity: str
    request: QueuedRequest
    #: A value of the application. It must be JSON.
    data: Any = None
    #: `unknown` means that the operation may have had its effect: see `Queue.resolve`.
    state: Literal["pending", "unknown"] = "pending"
    #: The text of the error that made the outcome unknown.
    problem: str | None = None


def _nothing(*_: Any) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Actions:
    """The optimistic changes of one intent, in this process."""

    #: Shows the change. Called once the intent is stored, and again after a restart.
    apply: Callable[[QueuedIntent], None] = _nothing
    #: Undoes the change, after a definite failure.
    revert: Callable[[QueuedIntent, CallError | None], None] = _nothing
    #: Called when the operation has succeeded.
    confirm: Callable[[QueuedIntent, httpx.Response | None], None] = _nothing
    #: Called when the outcome is unknown.
    unknown: Callable[[QueuedIntent, CallError], None] = _nothing


class QueueStore(Protocol):
    """A durable storage for intents. Its methods are called from several threads."""

    def add(self, intent: QueuedIntent) -> bool:
        """Store an intent behind all others. It is durable when this returns.

        Return False if the key is stored already. Raise if the intent is not stored.
        """

    def update(self, intent: QueuedIntent) -> None:
        """Replace the intent with the same key."""

    def remove(self, key: str) -> None:
        """Remove an intent."""

    def list(self) -> list[QueuedIntent]:
        """Return all intents in the order in which they were added."""

    def exclusive(self, stop: threading.Event) -> AbstractContextManager[None]:
        """Hold off other processes. Wait for them until `stop` is set."""


class SqliteStore:
    """A store in a SQLite file, which several processes can share."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def add(self, intent: QueuedIntent) -> bool:
        """Store an intent. It is on disk when this returns."""
        row = (intent.key, intent.entity, _written(intent), intent.state, intent.problem)
        sql = (
            "INSERT INTO intents (key, entity, content, state, problem) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (key) DO NOTHING"
        )
        return self._change(sql, row) == 1

    def update(self, intent: QueuedIntent) -> None:
        """Replace the state of an intent."""
        row = (intent.state, intent.problem, intent.key)
        self._change("UPDATE intents SET state = ?, problem = ? WHERE key = ?", row)

    def remove(self, key: str) -> None:
        """Remove an intent."""
        self._change("DELETE FROM intents WHERE key = ?", (key,))

    def list(self) -> list[QueuedIntent]:
        """Return all intents in the order in which they were added."""
        sql = "SELECT key, entity, content, state, problem FROM intents ORDER BY number"
        with self._lock:
            return [_read(row) for row in self._open().execute(sql)]

    @contextmanager
    def exclusive(self, stop: threading.Event) -> Iterator[None]:
        """Hold a lock that ends with the process, even if it is killed."""
        lock = sqlite3.connect(
            self._path + "-lock", timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            while True:
                try:
                    lock.execute("BEGIN EXCLUSIVE")
                    break
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or stop.wait(_LOCK_PAUSE_SECONDS):
                        raise
            yield
        finally:
            lock.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _change(self, sql: str, row: tuple[str | None, ...]) -> int:
        with self._lock:
            connection = self._open()
            with connection:
                return connection.execute(sql, row).rowcount

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, timeout=30, check_same_thread=False)
            # A commit is on disk before the first attempt is sent.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS intents (number INTEGER PRIMARY KEY AUTOINCREMENT, "
                "key TEXT NOT NULL UNIQUE, entity TEXT NOT NULL, content TEXT NOT NULL, "
                "state TEXT NOT NULL, problem TEXT)"
            )
            connection.commit()
            self._connection = connection
        return self._connection


def _written(intent: QueuedIntent) -> str:
    request = intent.request
    members = {
        "url": request.url,
        "method": request.method,
        "headers": dict(request.headers),
        "body": request.body,
    }
    return json.dumps({"request": members, "data": intent.data})


def _read(row: tuple[str, str, str, Literal["pending", "unknown"], str | None]) -> QueuedIntent:
    key, entity, content, state, problem = row
    members = json.loads(content)
    request = QueuedRequest(**members["request"])
    return QueuedIntent(key, entity, request, members["data"], state, problem)


class Queue:
    """An optimistic queue. It sends from threads of its own."""

    def __init__(
        self,
        store: QueueStore,
        onetake: Onetake | None = None,
        *,
        actions: Callable[[QueuedIntent], Actions | None] = lambda _: None,
        transport: httpx.BaseTransport | None = None,
        concurrency_max: int = 4,
        pause_max_seconds: float = 30.0,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        own = onetake or Onetake()
        self._onetake = Onetake(
            own.limits,
            budget=own.budget,
            headers=own.headers,
            observe=own.observe,
            raise_refused=True,
            clock=own.clock,
        )
        self._store = store
        self._restored = actions
        self._concurrency_max = concurrency_max
        self._pause_max_seconds = pause_max_seconds
        self._on_error = on_error or (lambda error: _LOG.error("the queue failed", exc_info=error))
        self._shown: dict[str, Actions] = {}
        # Keys that are stored and not applied yet. They are not sent.
        self._applying: set[str] = set()
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._has_changed = True
        self._is_idle = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._client = httpx.Client(
            transport=OnetakeTransport(self._onetake, transport, stop=self._stop),
            timeout=None,  # noqa: S113 (each attempt has its own)
        )

    def start(self) -> None:
        """Apply the stored intents again and begin to send them. Call it once, at the start."""
        for intent in self._store.list():
            actions = self._restored(intent)
            if actions is not None and intent.key not in self._shown:
                self._shown[intent.key] = actions
                self._act(actions.apply, intent)
        self._thread = threading.Thread(target=self._run, name="onetake-queue", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the queue. Intents that are not settled stay in the store."""
        self._stop.set()
        self.wake()
        if self._thread is not None:
            self._thread.join()
        self._client.close()

    def __enter__(self) -> Queue:
        """Start the queue."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the queue."""
        self.stop()

    def submit(
        self,
        entity: str,
        request: QueuedRequest,
        actions: Actions | None = None,
        *,
        intent: Intent | None = None,
        data: Any = None,
    ) -> QueuedIntent:
        """Store an intent, apply it, and send it in the background.

        Raise `StorageFailed` if it cannot be stored; then it is neither applied nor sent. An intent
        whose key is stored already is not applied again.
        """
        key = (intent or self._onetake.intent()).key
        queued = QueuedIntent(key, entity, request, data)
        with self._changed:
            self._applying.add(key)
        try:
            self._add(queued, actions or Actions())
        finally:
            with self._changed:
                self._applying.discard(key)
            self._change()
        return queued

    def _add(self, queued: QueuedIntent, actions: Actions) -> None:
        """Store an intent and apply it, if it is new."""
        try:
            is_new = self._store.add(queued)
        except Exception as error:
            raise StorageFailed() from error
        if not is_new:
            return
        self._shown[queued.key] = actions
        try:
            actions.apply(queued)
        except BaseException:
            self._shown.pop(queued.key, None)
            self._store.remove(queued.key)
            raise

    def intents(self) -> list[QueuedIntent]:
        """Return the stored intents: those on their way, and those whose outcome is unknown."""
        return self._store.list()

    def resolve(self, key: str, settled: Settled) -> None:
        """Settle an intent whose outcome is unknown, when somebody has found out about it."""
        for intent in self._store.list():
            if intent.key == key and intent.state == "unknown":
                self._settle(intent, settled)
        self.wake()

    def retry(self, key: str) -> None:
        """Send an intent whose outcome is unknown again, with the same key."""
        for intent in self._store.list():
            if intent.key == key:
                self._store.update(replace(intent, state="pending", problem=None))
        self.wake()

    def idle(self, timeout_seconds: float | None = None) -> bool:
        """Wait until nothing can be sent. Return False if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_idle, timeout_seconds)

    def wake(self) -> None:
        """End pauses, for example because the network is back."""
        self._wake.set()
        self._change()

    def _change(self) -> None:
        with self._changed:
            self._has_changed, self._is_idle = True, False
            self._changed.notify_all()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                with self._store.exclusive(self._stop):
                    self._drain()
                failures = 0
            except Exception as error:  # noqa: BLE001 (a store of the user can raise anything)
                if self._stop.is_set():
                    return
                self._on_error(error)
                self._pause(failures)
                failures += 1
                continue
            with self._changed:
                if not self._has_changed:
                    self._is_idle = True
                    self._changed.notify_all()
                self._changed.wait_for(lambda: self._has_changed or self._stop.is_set())

    def _drain(self) -> None:
        """Send the first intent of each entity until nothing is left that can be sent."""
        busy: set[str] = set()

        def sent(intent: QueuedIntent) -> None:
            try:
                self._send(intent)
            except Exception as error:  # noqa: BLE001 (a store of the user can raise anything)
                if not self._stop.is_set():
                    self._on_error(error)
                    self._pause(0)
            finally:
                with self._changed:
                    busy.discard(intent.entity)
                    self._has_changed = True
                    self._changed.notify_all()

        with ThreadPoolExecutor(self._concurrency_max, "onetake-queue") as pool:
            while True:
                with self._changed:
                    self._has_changed = False
                heads = {} if self._stop.is_set() else _heads(self._store.list())
                with self._changed:
                    for entity, intent in heads.items():
                        if len(busy) >= self._concurrency_max:
                            break
                        is_ready = intent.state == "pending" and intent.key not in self._applying
                        if is_ready and entity not in busy:
                            busy.add(entity)
                            pool.submit(sent, intent)
                    if not busy and not self._has_changed:
                        return
                    self._changed.wait_for(lambda: self._has_changed)

    def _send(self, intent: QueuedIntent) -> None:
        """Send one intent until its outcome is settled or unknown, or the queue is stopped."""
        request = intent.request
        headers = {**request.headers, "Idempotency-Key": intent.key}
        pauses = 0
        while not self._stop.is_set():
            try:
                response = self._client.request(
                    request.method, request.url, headers=headers, content=request.body
                )
            except (Refused, Mismatch) as error:
                return self._settle(intent, "reverted", error=error)
            except OutcomeUnknown as error:
                if error.reason is None:
                    unknown = replace(intent, state="unknown", problem=str(error))
                    self._store.update(unknown)
                    actions = self._shown.get(intent.key, Actions())
                    return self._act(actions.unknown, unknown, error)
            except (CallError, httpx.RequestError):
                pass
            else:
                return self._settle(intent, "applied", response=response)
            self._pause(pauses)
            pauses += 1

    def _pause(self, pauses: int) -> None:
        clock = self._onetake.clock
        most = min(self._pause_max_seconds, _PAUSE_BASE_SECONDS * 2 ** min(pauses, 16))
        self._wake.clear()
        if not self._stop.is_set():
            clock.sleep(clock.random() * most, self._wake)

    def _settle(
        self,
        intent: QueuedIntent,
        settled: Settled,
        response: httpx.Response | None = None,
        error: CallError | None = None,
    ) -> None:
        """Tell the application, and remove the intent after that: a kill in between repeats it."""
        actions = self._shown.pop(intent.key, Actions())
        if settled == "applied":
            self._act(actions.confirm, intent, response)
        else:
            self._act(actions.revert, intent, error)
        self._store.remove(intent.key)

    def _act(self, action: Callable[..., None], *values: Any) -> None:
        """Run an action. Its error must not keep the intent in the queue."""
        try:
            action(*values)
        except Exception as error:  # noqa: BLE001 (an action can raise anything)
            self._on_error(error)


def _heads(intents: list[QueuedIntent]) -> dict[str, QueuedIntent]:
    """Return the first intent of each entity."""
    heads: dict[str, QueuedIntent] = {}
    for intent in intents:
        heads.setdefault(intent.entity, intent)
    return heads
