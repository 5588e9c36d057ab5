"""Summing up access logs."""

from juicepy.jobs.profile import Filter, Operation, Profile, parse, windows


def line(second: int, name: str, took_s: float, uid: int = 0) -> bytes:
    return (
        f"2026.11.30 02:33:{second:02}.500000 [uid:{uid},gid:5,pid:17] {name} (1,a <b>): (37)"
        f" - OK <{took_s:.6f}>\n"
    ).encode()


def test_lines_are_parsed() -> None:
    found = parse(line(15, "mkdir", 0.000433, uid=3))
    assert found is not None
    assert (found.name, found.took_s) == ("mkdir", 0.000433)
    assert (found.uid, found.gid, found.pid) == (3, 5, 17)
    later = parse(line(16, "mkdir", 1))
    assert later is not None
    assert later.at_s - found.at_s == 1


def test_what_is_no_operation_is_passed_over() -> None:
    assert parse(b"#\n") is None
    assert parse(line(1, "read", 0.1)[:-5]) is None
    assert parse(b"") is None
    assert parse(b"\xff\xfe\n") is None


def test_names_that_are_no_text_do_not_matter() -> None:
    found = parse(b"2026.11.30 02:33:15.000000 [uid:0,gid:0,pid:1] lookup (1,\xff) - OK <0.1>\n")
    assert found is not None
    assert found.name == "lookup"


def test_the_longest_comes_first() -> None:
    profile = Profile()
    for name, took_s in (("read", 0.1), ("write", 0.5), ("read", 0.3)):
        profile.add(Operation(0.0, 0, 0, 0, name, took_s))
    rows = list(profile.rows(2.0))
    assert [(name, count, round(share)) for name, count, _, _, share in rows] == [
        ("write", 1, 25),
        ("read", 2, 20),
    ]
    assert [cell.split() for cell in profile.text(2.0).splitlines()][1:] == [
        ["write", "1", "500000", "500000", "25.0"],
        ["read", "2", "200000", "400000", "20.0"],
    ]


def test_filters() -> None:
    operation = Operation(0.0, 1, 2, 3, "read", 0.1)
    assert Filter().takes(operation)
    assert Filter(uids=frozenset([1, 9]), pids=frozenset([3])).takes(operation)
    assert not Filter(gids=frozenset([1])).takes(operation)


def test_a_saved_log_is_cut_into_windows() -> None:
    log = [parse(line(second, "read", 0.1)) for second in (10, 11, 14, 15)]
    operations = [each for each in log if each is not None]
    counts = [
        (took_s, sum(count for _, count, *_ in profile.rows(1)))
        for _, took_s, profile in windows(operations, 2.0)
    ]
    assert counts == [(2.0, 2), (2.0, 0), (1.0, 2)]
    (only,) = windows(operations, 0)
    assert only[1] == 5.0
