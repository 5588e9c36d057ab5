"""The ring of cache directories: the same places as other clients choose.

The expected members were seen in directories that a JuiceFS 1.4.2 mount filled.
"""

from __future__ import annotations

from juicepy.cache.ring import Ring, hash_of, legacy_member

IDS = (
    "c14c06d0-dcdf-4368-a879-72707007534f",
    "e03d721d-dcd5-4a85-9fee-014ac2f706de",
    "d897713e-86be-4a77-b084-44bdfdc9ca4a",
)
SEEN = (
    "6_0_6000 8_0_8000 11_0_11000 13_0_13000 15_0_15000 21_0_21000 22_0_22000 24_0_24000 "
    "28_0_28000 30_0_30000 33_0_33000 40_0_40000",
    "16_0_16000 17_0_17000 18_0_18000 19_0_19000 20_0_20000 23_0_23000 27_0_27000 "
    "29_0_29000 31_0_31000 32_0_32000 34_0_34000 36_0_36000 38_0_38000 41_0_4194304",
    "1_0_1000 2_0_2000 3_0_3000 4_0_4000 5_0_5000 7_0_7000 9_0_9000 10_0_10000 12_0_12000 "
    "14_0_14000 25_0_25000 26_0_26000 35_0_35000 37_0_37000 39_0_39000 41_2_611392 "
    "41_1_4194304",
)


def test_hash_is_murmur3() -> None:
    assert hash_of("hello") == 0x248BFA47
    assert hash_of("") == 0


def test_blocks_are_where_other_clients_put_them() -> None:
    ring = Ring(IDS)
    for number, names in enumerate(SEEN):
        for name in names.split():
            assert ring.member(f"chunks/0/0/{name}") == number, name


def test_single_member_owns_everything() -> None:
    ring = Ring(["11111111-2222-3333-4444-555555555555"])
    assert {ring.member(f"chunks/0/0/{number}_0_5") for number in range(100)} == {0}


def test_members_own_about_equal_shares() -> None:
    ring = Ring(["a", "b", "c", "d"])
    counts = [0] * 4
    for number in range(4000):
        counts[ring.member(f"chunks/0/0/{number}_0_5")] += 1
    assert min(counts) > 700


def test_without_a_member_most_keys_stay() -> None:
    keys = [f"chunks/0/0/{number}_0_5" for number in range(2000)]
    three, two = Ring(["a", "b", "c"]), Ring(["a", "b"])
    stayed = [key for key in keys if three.member(key) < 2]
    moved = [key for key in stayed if three.member(key) != two.member(key)]
    assert len(moved) < len(stayed) // 4


def test_legacy_place_is_fnv1() -> None:
    assert legacy_member("", 1 << 32) == 0x811C9DC5
    assert legacy_member("a", 1 << 32) == 0x050C5D7E
