"""Which groups a request is about: the filter of lists and watches, evaluated in slices, and remembered for a while."""

import re
from collections import OrderedDict
from fnmatch import translate
from typing import NamedTuple

import numpy as np

from adapter.errors import InvalidInputError
from adapter.model.lag_rows import Bools, Ints
from adapter.model.names import NAME_MAX_BYTES, check_name
from adapter.rpc import lag_pb
from adapter.runtime.slices import others
from adapter.sidecar.lag.view import View

SLICE_NAMES = 1_000  # compared with a pattern between two yields: a millisecond


class Filter(NamedTuple):
    """Empty fields choose all. `at_least` is a number of LagStatus."""

    namespace: str
    pattern: str
    at_least: int

    async def of(self, view: View) -> Bools:
        """Which groups of a view match, by their numbers."""
        matches = view.kept & (view.sums.status >= self.at_least)
        if not (self.namespace or self.pattern):
            return matches
        fits = re.compile(translate(self.pattern)).match if self.pattern else None
        found: Ints = np.flatnonzero(matches)
        for at in range(0, len(found), SLICE_NAMES):
            for group in found[at : at + SLICE_NAMES].tolist():
                key = view.groups[group]
                if (self.namespace and key.namespace != self.namespace) or (fits and not fits(key.group)):
                    matches[group] = False
            await others()
        return matches
