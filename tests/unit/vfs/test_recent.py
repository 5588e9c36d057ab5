from __future__ import annotations

from juicepy.vfs.recent import Recent


class Source:
    """Counts how often it is read; `meanwhile` happens during a read."""

    def __init__(self) -> None:
        self.value, self.reads = "old", 0
        self.now_s = 0.0
        self.recent: Recent[str, str] = Recent(1.0, clock=lambda: self.now_s)

    def read(self) -> str:
        self.reads += 1
        return self.value

    def get(self) -> str:
        return self.recent.get("key", self.read)


def test_answers_are_believed_until_their_time_is_over() -> None:
    source = Source()
    assert source.get() == "old"
    source.value, source.now_s = "new", 0.9
    assert source.get() == "old"
    source.now_s = 1.0
    assert source.get() == "new"
    assert source.reads == 2


def test_own_changes_are_seen_at_once() -> None:
    source = Source()
    source.get()
    source.value = "new"
    source.recent.forget("key")
    assert source.get() == "new"


def test_an_answer_from_before_a_change_is_not_kept() -> None:
    source = Source()

    def overtaken() -> str:
        found = source.read()
        source.value = "new"
        source.recent.forget("key")
        return found

    assert source.recent.get("key", overtaken) == "old"
    assert source.get() == "new"


def test_the_number_of_answers_is_bounded() -> None:
    recent: Recent[int, int] = Recent(1.0, clock=lambda: 0.0)
    for number in range(5000):
        recent.get(number, lambda: 0)
    assert len(recent._known) <= 1000


def test_nothing_is_kept_for_no_time() -> None:
    source = Source()
    source.recent = Recent(0.0, clock=lambda: 0.0)
    source.get()
    source.get()
    assert source.reads == 2
