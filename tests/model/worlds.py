"""The worlds by name: the model of tests/model/runs.py, and others that leave its rules in place and add what they are about."""

from tests.model import choices as st
from tests.model.broker import Setup
from tests.model.choices import rule
from tests.model.clocks import Skewed
from tests.model.epochless import Epochless
from tests.model.etcd import Etcd
from tests.model.forgotten import Forgetful
from tests.model.formats import Exchanged
from tests.model.lost_parts import Lossy
from tests.model.observers import Observed
from tests.model.runs import SETUPS, Everything
from tests.model.slow_peers import Slow
from tests.model.wide import Wide


class Three(Everything):
    """Three adapters."""

    @rule(seed=st.integers(0, 99), setups=st.tuples(*[SETUPS] * 3))
    def begin(self, seed: int, setups: tuple[Setup, ...]) -> None:
        """Three adapters start over empty disks."""
        self.build(seed, setups)


WORLDS: dict[str, type[Everything]] = {
    "two": Everything,
    "three": Three,
    "forgetful": Forgetful,
    "lossy": Lossy,
    "epochless": Epochless,
    "skewed": Skewed,
    "observed": Observed,
    "slow": Slow,
    "exchanged": Exchanged,
    "etcd": Etcd,
    "wide": Wide,
}
