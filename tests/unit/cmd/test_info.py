"""What `jfs info` prints, beside what JuiceFS 1.4.2 printed for the same answers."""

from juicepy.cmd.info import _shown, sized

EXPECTED = """\
m1/big :
  inode: 1026
  files: 1
   dirs: 0
 length: 128.00 MiB (134217739 Bytes)
   size: 128.00 MiB (134221824 Bytes)
  paths:
	/big
	/d/g
   tier: 0->actual() \n\
 objects:
+------------+-----------------------------+---------+--------+---------+----------+
| chunkIndex |          objectName         |   size  | offset |  length |    pos   |
+------------+-----------------------------+---------+--------+---------+----------+
|          0 |                             | 5242880 |      0 | 5242880 |        0 |
|          0 | v/chunks/0/4/4097_0_100000  |  100000 |      0 |  100000 |  5242880 |
|          1 | v/chunks/0/4/4099_0_4194304 | 4194304 |      0 |    4000 | 67108864 |
+------------+-----------------------------+---------+--------+---------+----------+
 flocks:
+-----+---------------------+------+
| Sid |        Owner        | Type |
+-----+---------------------+------+
| 2   | 8055463989305878971 |    R |
+-----+---------------------+------+
 plocks:
+-----+-------+------+-------+-------+-----+
| Sid | Owner | Type |  Pid  | Start | End |
+-----+-------+------+-------+-------+-----+
| 2   |     5 |    W | 18719 |     5 |  14 |
+-----+-------+------+-------+-------+-----+"""


def test_tables_are_those_of_juicefs() -> None:
    key = "v/chunks/0/4/4099_0_4194304"
    answer = {
        "Ino": 1026,
        "Summary": {"Length": 134217739, "Size": 134221824, "Files": 1, "Dirs": 0},
        "Paths": ["/big", "/d/g"],
        "Tier": {"ID": 0, "StorageClass": "actual()", "Tag": ""},
        "Objects": [
            {"ChunkIndex": 0, "Key": "", "Size": 5242880, "Off": 0, "Len": 5242880},
            {
                "ChunkIndex": 0,
                "Key": "v/chunks/0/4/4097_0_100000",
                "Size": 100000,
                "Off": 0,
                "Len": 100000,
            },
            {"ChunkIndex": 1, "Key": key, "Size": 4194304, "Off": 0, "Len": 4000},
        ],
        "FLocks": [{"Sid": 2, "Owner": 8055463989305878971, "Type": "R"}],
        "PLocks": [{"Sid": 2, "Owner": 5, "Type": "W", "Pid": 18719, "Start": 5, "End": 14}],
    }
    assert _shown("m1/big", answer) == EXPECTED


def test_sizes_for_people() -> None:
    assert sized(0) == "0 Bytes"
    assert sized(1023) == "1023 Bytes"
    assert sized(4096) == "4.00 KiB (4096 Bytes)"
    assert sized(9000006) == "8.58 MiB (9000006 Bytes)"
    assert sized(1 << 70).endswith(f"EiB ({1 << 70} Bytes)")
