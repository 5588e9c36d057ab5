from __future__ import annotations

import random
import tracemalloc

from juicepy.meta.redis.names import NameSet


def test_each_name_is_new_once() -> None:
    """Also where one is part of another, or they are made of the same bytes."""
    chance, names, known = random.Random(5), NameSet(), set()
    for _ in range(50_000):
        name = bytes(chance.choices(b"ab\xff", k=chance.randrange(1, 12)))
        assert names.add(name) is (name not in known)
        known.add(name)


def test_a_hundred_thousand_names_take_little_memory() -> None:
    names = NameSet()
    tracemalloc.start()
    try:
        assert all(names.add(b"s%d" % number) for number in range(100_000))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3 << 20
