"""Patterns of --include and --exclude: the results are those of `juicefs sync` 1.4."""

import logging

import pytest

from juicepy.jobs.matching import Matcher, Rule

PATHS = (
    "a.txt", "a1/b1", "a1/x.txt", "b.bin", "p/a.txt", "p/sub/q/z.txt", "sub/a.txt",
    "sub/deep/a.txt", "sub/deep/c.log", "w/a*b", "w/x y/_f", "x[1",
)  # fmt: skip
SUB = {"sub/a.txt", "sub/deep/a.txt", "sub/deep/c.log"}
DEEP = {"sub/deep/a.txt", "sub/deep/c.log"}
EVERY_A = {"a.txt", "p/a.txt", "sub/a.txt", "sub/deep/a.txt"}


def left_out(*rules: Rule) -> set[str]:
    """What a walk with these rules does not come to."""
    matcher = Matcher(rules)

    def is_taken(path: str) -> bool:
        parts = path.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        return all(matcher.takes(each, is_dir=True) for each in above) and matcher.takes(
            path, is_dir=False
        )

    return {path for path in PATHS if not is_taken(path)}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.txt", EVERY_A),
        ("/a.txt", {"a.txt"}),
        ("a.txt/", set()),
        ("a.t", set()),
        ("a.txt*", EVERY_A),
        ("sub", SUB | {"p/sub/q/z.txt"}),
        ("sub/", SUB | {"p/sub/q/z.txt"}),
        ("/sub", SUB),
        ("/sub/", SUB),
        ("/sub/*", SUB),
        ("/deep/", set()),
        ("sub/de*", DEEP),
        ("sub/deep", DEEP),
        ("/p/sub/", {"p/sub/q/z.txt"}),
        ("p/*/q", {"p/sub/q/z.txt"}),
        ("p/**z.txt", {"p/sub/q/z.txt"}),
        ("sub/**/a.txt", {"sub/deep/a.txt"}),
        ("sub/**a.txt", {"sub/a.txt", "sub/deep/a.txt"}),
        ("su**/a.txt", {"sub/a.txt", "sub/deep/a.txt"}),
        ("/*/a.txt", {"p/a.txt", "sub/a.txt"}),
        ("deep/***", DEEP),
        ("*", set(PATHS)),
        ("/**", set(PATHS)),
        ("*/", {path for path in PATHS if "/" in path}),
        ("?", {"p/a.txt", "p/sub/q/z.txt", "w/a*b", "w/x y/_f"}),
        ("b.bi?", {"b.bin"}),
        ("eep/a.txt", set()),
        ("./a.txt", set()),
        ("sub//deep", set()),
        ("", set()),
        ("/", set()),
        ("x\\[1", {"x[1"}),
        ("a\\*b", {"w/a*b"}),
        ("a\\xtxt", set()),
        ("a?/b*", {"a1/b1"}),
        ("[!a].*", EVERY_A),
        ("[^a].*", {"a1/x.txt", "b.bin", "p/sub/q/z.txt", "sub/deep/c.log"}),
        ("[[:alpha:]].txt", set()),
    ],
)
def test_excluded_by_one_pattern(pattern: str, expected: set[str]) -> None:
    assert left_out(Rule(False, pattern)) == expected


def test_first_rule_that_matches_decides() -> None:
    everything = Rule(False, "*")
    assert left_out(Rule(True, "a1/b1"), Rule(False, "a[1-9]/b*")) == set()
    assert left_out(Rule(True, "*.txt"), everything) == set(PATHS) - {"a.txt"}
    texts = {path for path in PATHS if path.endswith(".txt")}
    assert left_out(Rule(True, "*/"), Rule(True, "*.txt"), everything) == set(PATHS) - texts
    assert left_out(everything, Rule(True, "*.txt")) == set(PATHS)


@pytest.mark.parametrize("pattern", ["x[1", "[a-]*", "[]a].txt", "[", "a*\\"])
def test_what_is_no_pattern_is_ignored_with_a_warning(
    pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "juicepy"):
        assert left_out(Rule(False, pattern)) == set()
