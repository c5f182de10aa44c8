"""Every block of the README runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
TEXT = PACKAGE.joinpath("README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)

#: The number of requests of each block, with a key and without.
REQUESTS = [
    ("httpx, before", 0, 1),
    ("httpx, after", 2, 0),
    ("httpx, async", 2, 0),
    ("requests, before", 0, 1),
    ("requests, after", 2, 0),
    ("intents", 2, 0),
    ("limits", 0, 0),
    ("traces", 2, 0),
    ("queue", 2, 0),
    ("fastapi", 0, 0),
    ("django", 0, 0),
]


def test_every_block_is_listed():
    assert len(BLOCKS) == len(REQUESTS)


@pytest.mark.parametrize("number", range(len(REQUESTS)), ids=[title for title, *_ in REQUESTS])
def test_a_block_runs(number, server, tmp_path):
    # The first response to a key is lost, so that the block needs a retry.
    def handle(request):
        key = request.headers.get("idempotency-key")
        is_first = sum(seen == key for seen in server.keys) == 1
        if key is not None and is_first:
            return None
        return 201, {"Content-Type": "application/json"}, b'{"charge":1}'

    server.handle = handle
    block = BLOCKS[number].replace("https://api.example.com", server.url)
    block = block.replace('"https://"', '"http://"')
    path = os.pathsep.join([str(PACKAGE / "src"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        env=environment,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    _, keyed, bare = REQUESTS[number]
    assert len([key for key in server.keys if key is not None]) == keyed
    assert len([key for key in server.keys if key is None]) == bare
    assert len(set(server.keys)) <= 1
