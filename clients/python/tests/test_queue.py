from __future__ import annotations

import sqlite3
import threading
import time

import pytest

from onetake import Intent, Limits, Onetake, StorageFailed
from onetake.queue import Actions, Queue, QueuedIntent, QueuedRequest, SqliteStore

KEY = "0123456789abcdef-"


def intent(number: int) -> QueuedIntent:
    request = QueuedRequest("http://localhost/", headers={"A": "b"}, body="x")
    return QueuedIntent(f"{KEY}{number}", "cart", request, {"n": number})


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "queue.db")
    yield store
    store.close()


@pytest.fixture
def onetake(clock):
    return Onetake(Limits(attempts_max=1), clock=clock)


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.005)


def test_intents_keep_their_order_through_changes(store, tmp_path):
    for number in range(1, 13):
        assert store.add(intent(number))
    assert not store.add(intent(3)), "a key is stored once"
    store.update(QueuedIntent(f"{KEY}2", "cart", intent(2).request, None, "unknown", "?"))
    store.remove(f"{KEY}1")
    store.remove("absent")
    reopened = SqliteStore(tmp_path / "queue.db")
    found = reopened.list()
    reopened.close()
    assert [one.key for one in found] == [f"{KEY}{number}" for number in range(2, 13)]
    assert (found[0].state, found[0].problem, found[1]) == ("unknown", "?", intent(3))
    assert store.add(intent(1)), "a removed key can be stored again"
    assert store.list()[-1].key == f"{KEY}1"


def test_one_process_at_a_time_has_the_lock(store, tmp_path):
    other, stop, entered = SqliteStore(tmp_path / "queue.db"), threading.Event(), threading.Event()

    def wait() -> None:
        with other.exclusive(stop):
            entered.set()

    with store.exclusive(stop):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.3)
    assert entered.wait(30)
    thread.join()
    with store.exclusive(stop):
        stop.set()
        with pytest.raises(sqlite3.OperationalError), other.exclusive(stop):
            pass


def test_a_storage_that_is_full_or_blocked_refuses_the_intent_as_a_whole(server, tmp_path, onetake):
    full = SqliteStore(tmp_path / "full.db")
    full.list()
    full._connection.execute("PRAGMA max_page_count = 1")
    blocked = SqliteStore(tmp_path / "no" / "folder.db")
    for store in (full, blocked):
        applied = []
        queue = Queue(store, onetake)
        with pytest.raises(StorageFailed):
            queue.submit("a", QueuedRequest(server.url, body="x" * 9000), Actions(applied.append))
        assert applied == []
        queue.stop()
    assert full.list() == []
    assert server.received == []
    full.close()


def test_an_intent_is_stored_and_applied_before_it_is_sent(server, store, onetake):
    order = []
    add = store.add
    store.add = lambda intent: (time.sleep(0.05), order.append("stored"), add(intent))[2]
    server.handle = lambda _: (order.append("sent"), (201, {}, b""))[1]
    with Queue(store, onetake) as queue:
        queue.submit("a", QueuedRequest(server.url), Actions(lambda _: order.append("applied")))
        assert queue.idle(30)
    assert order == ["stored", "applied", "sent"]


def test_the_same_intent_is_applied_and_sent_once(server, store, onetake):
    applied = []
    with Queue(store, onetake) as queue:
        server.handle = lambda _: (time.sleep(0.1), (201, {}, b""))[1]
        for _ in range(2):
            actions = Actions(applied.append)
            queue.submit("a", QueuedRequest(server.url), actions, intent=Intent(f"{KEY}1"))
        assert queue.idle(30)
    assert (len(applied), server.keys) == (1, [f"{KEY}1"])


def test_an_intent_whose_apply_fails_is_not_sent(server, store, onetake):
    with Queue(store, onetake) as queue:

        def apply(_):
            # The queue looks into the store meanwhile.
            queue.wake()
            assert queue.idle(30)
            raise LookupError("no such row")

        with pytest.raises(LookupError):
            queue.submit("a", QueuedRequest(server.url), Actions(apply))
        assert queue.idle(30)
    assert server.received == []


def test_entities_do_not_wait_for_each_other_and_one_entity_keeps_its_order(store, onetake):
    bodies, released = [], threading.Event()

    class Transport:
        def handle_request(self, request):
            import httpx

            bodies.append(request.content.decode())
            if bodies[-1] == "a1":
                assert released.wait(30)
            return httpx.Response(201, stream=httpx.ByteStream(b""))

        def close(self):
            pass

    with Queue(store, onetake, transport=Transport()) as queue:
        for body in ("a1", "a2", "b1"):
            queue.submit(body[0], QueuedRequest("http://localhost/", body=body))
        until(lambda: "b1" in bodies)
        assert "a2" not in bodies
        released.set()
        assert queue.idle(30)
    assert [body for body in bodies if body.startswith("a")] == ["a1", "a2"]


def test_an_unknown_outcome_stays_until_somebody_settles_it_or_asks_again(server, store, onetake):
    def handle(request):
        is_unknown = len(server.received) == 1 or request.body == b"second"
        return (500 if is_unknown else 201), {}, b""

    server.handle = handle
    settled = []
    actions = Actions(
        confirm=lambda *_: settled.append("applied"), revert=lambda *_: settled.append("reverted")
    )
    with Queue(store, onetake) as queue:
        first = queue.submit("a", QueuedRequest(server.url, body="first"), actions)
        second = queue.submit("a", QueuedRequest(server.url, body="second"), actions)
        assert queue.idle(30)
        assert [one.state for one in queue.intents()] == ["unknown", "pending"]
        queue.retry(first.key)
        assert queue.idle(30)
        assert settled == ["applied"]
        queue.resolve(second.key, "reverted")
        assert settled == ["applied", "reverted"]
        assert queue.intents() == []
    assert server.keys == [first.key, first.key, second.key]


def test_errors_of_the_store_and_of_actions_are_told_and_the_intent_is_settled(
    server, store, onetake
):
    remove, failures, errors = store.remove, [1, 1], []

    def failing(key):
        if failures:
            failures.pop()
            raise OSError("disk")
        remove(key)

    def confirm(*_):
        raise LookupError("confirm")

    store.remove = failing
    with Queue(store, onetake, on_error=errors.append) as queue:
        queue.submit("a", QueuedRequest(server.url), Actions(confirm=confirm))
        until(lambda: queue.intents() == [])
    assert len(set(server.keys)) == 1
    assert [str(error) for error in errors] == ["confirm", "disk", "disk"]


def test_a_queue_that_is_stopped_in_a_backoff_ends_at_once(server, store):
    server.handle = lambda _: (503, {"Retry-After": "20"}, b"")
    with Queue(store) as queue:
        queue.submit("a", QueuedRequest(server.url))
        until(lambda: server.received)
    assert len(store.list()) == 1
