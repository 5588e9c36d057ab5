"""ACL rules of the volume: shared, immutable, known by number."""

from __future__ import annotations

from juicepy.concurrency import Lock
from juicepy.meta.codec import encode_acl
from juicepy.meta.redis.keys import Keys
from juicepy.meta.redis.link import Link
from juicepy.types import AclRule


class AclRules:
    """Rules seen so far, by id and by content. Two clients may store one rule twice: harmless."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link, self._keys = link, keys
        self._lock = Lock("redis ACL rules")  # guards changes of both
        self._raws: dict[int, bytes] = {}
        self._ids: dict[bytes, int] = {}

    def raw(self, rule_id: int) -> bytes | None:
        """The stored rule, if it was seen before."""
        return self._raws.get(rule_id)

    def save(self, rule: AclRule) -> int:
        """The id of an equal rule; the rule is stored under a new one if there is none."""
        raw = encode_acl(rule)
        if raw not in self._ids:
            self._load()
        if raw in self._ids:
            return self._ids[raw]
        rule_id = int(self._link.call("INCR", self._keys.counter("aclMaxId")))
        self._link.call("HSETNX", self._keys.named("acl"), b"%d" % rule_id, raw)
        self._learn({rule_id: raw})
        return rule_id

    def _load(self) -> None:
        flat = self._link.call("HGETALL", self._keys.named("acl"))
        self._learn(dict(zip(map(int, flat[::2]), flat[1::2], strict=True)))

    def _learn(self, raws: dict[int, bytes]) -> None:
        with self._lock:
            self._raws.update(raws)
            for rule_id, raw in raws.items():
                self._ids.setdefault(raw, rule_id)
