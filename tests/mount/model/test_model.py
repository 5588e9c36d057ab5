"""Random operations on a mount of ours and in a local directory: same results, same trees.

`local` compares two local directories: what fails there is a fault of the test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.mount.model.kept import EXAMPLES
from tests.mount.model.machine import Machine
from tests.mount.model.pair import Bases, Difference, reduced, replay
from tests.mount.posix.conftest import open_home
from tests.support.chance import run_again, seeds, timeout_s
from tests.support.programs import OURS
from tests.support.volumes import new_volume

TRASH_DAYS = {"redis": "1", "sqlite": "0"}
MOUNTING = ("-o", "dev,suid")
SECONDS = {"local": 3.0, "redis": 15.0, "sqlite": 15.0}
BATCH = settings(  # of one seed
    max_examples=15,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # shrinking is left to `reduced`: steps are known, and seconds do
    report_multiple_bugs=False,
)


@pytest.fixture(scope="module", params=["local", *TRASH_DAYS])
def bases(request: pytest.FixtureRequest, new_meta_url: Callable[[str], str]) -> Iterator[Bases]:
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(open_home())
        (home / "local").mkdir()
        if request.param == "local":
            (home / "tested").mkdir()
            yield Bases(home / "local", home / "tested")
            return
        volume = new_volume(new_meta_url(request.param), home / "volume")
        volume.format(OURS, "--trash-days", TRASH_DAYS[request.param])
        mounts = [stack.enter_context(volume.mounted(OURS, *MOUNTING)) for _ in range(2)]
        yield Bases(home / "local", mounts[0].path, mounts[1].path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_once_differed(bases: Bases, name: str) -> None:
    for with_data in (False, True):
        replay(bases, EXAMPLES[name], with_data=with_data)


@pytest.mark.long
@pytest.mark.timeout(timeout_s(max(SECONDS.values())))
def test_random_operations(bases: Bases, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["bases"]
    for seed in seeds(SECONDS[kind]):
        factory = hypothesis.seed(seed)(lambda: Machine(bases))
        try:
            run_state_machine_as_test(factory, settings=BATCH)
        except Difference as found:
            least = reduced(bases, found)
            least.add_note(run_again(request.node.nodeid, seed))
            raise least from None
        except BaseException as error:
            error.add_note(run_again(request.node.nodeid, seed))
            raise
    print(f"{bases.examples} examples, {bases.outcomes.total()} steps")
    for outcome, count in sorted(bases.outcomes.items()):
        print(f"  {count:6} {outcome}")
