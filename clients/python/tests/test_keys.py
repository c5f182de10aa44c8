from __future__ import annotations

import re
from pathlib import Path

import pytest

from onetake import Intent, InvalidKey, compensation_key, step_key

ROOT = Path(__file__).parents[3]


def rows(path: str) -> list[list[str]]:
    lines = ROOT.joinpath(path).read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [line.split("\t") for line in lines if not line.startswith("#")]


def test_a_new_key_is_a_uuid_of_version_7_with_the_time_in_front(clock):
    clock.wall = [0x0123456789AB / 1000]
    key = Intent.new(clock).key
    assert re.fullmatch(r"01234567-89a[ab]-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", key)
    assert Intent.new(clock).key != key


def test_keys_from_business_ids_are_those_of_the_vectors():
    vectors = rows("clients/conformance/keys.tsv")
    assert len(vectors) >= 6
    for *parts, key in vectors:
        assert Intent.from_ids(*parts).key == key


def test_keys_of_steps_and_compensations_are_those_of_the_vectors():
    vectors = rows("crates/onetake-core/src/derived.tsv")
    assert len(vectors) >= 5
    for *_, derived, step, compensation in vectors:
        assert step_key(derived, "charge-card") == step
        assert compensation_key(step) == compensation


@pytest.mark.parametrize(
    "key",
    ["", "short", "x" * 256, "0123456789 abcdef", "0123456789abcdeü", '"0123456789abcdef"',
     "0123456789abcde\\", "0123456789abcdef\n", None],
)  # fmt: skip
def test_a_key_that_the_server_would_refuse_is_refused_at_once(key):
    with pytest.raises(InvalidKey):
        Intent(key)


def test_a_derived_key_must_be_a_uuid():
    with pytest.raises(InvalidKey):
        step_key("no uuid", "charge-card")
    assert len(Intent("x" * 255).key) == 255
