from __future__ import annotations

from juicepy.meta.redis.guesses import Guesses
from juicepy.types import ROOT, Inode


def test_names_that_are_gone_take_no_room() -> None:
    """Else who removes many files forgets all others for names that nobody asks for again."""
    guesses = Guesses(limit=16)
    guesses.learn([(Inode(5), b"attr")], [((ROOT, b"kept"), b"entry")])
    for number in range(100):
        name = (ROOT, b"%d" % number)
        guesses.learn([(Inode(number + 10), b"attr")], [(name, b"entry")])
        guesses.learn([(Inode(number + 10), None)], [(name, None)])
    assert guesses.entry(ROOT, b"kept") == b"entry"
    assert guesses.entry(ROOT, b"99") is None
    assert guesses.attr(Inode(5)) == b"attr"


def test_oldest_values_are_dropped_at_the_limit() -> None:
    guesses = Guesses(limit=16)
    for number in range(100):
        guesses.learn([], [((ROOT, b"%d" % number), b"entry")])
    assert guesses.entry(ROOT, b"99") == b"entry"
    assert guesses.entry(ROOT, b"0") is None
