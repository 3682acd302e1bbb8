"""Which groups a list or watch is about. A pattern is compared in slices, and what it matches remembered until groups change."""

import re
from collections import OrderedDict
from fnmatch import translate
from typing import NamedTuple

import numpy as np

from adapter.model.lag import SEVERITIES
from adapter.model.lag_rows import Bools, Ints
from adapter.model.lag_status import severity
from adapter.runtime.slices import others
from adapter.sidecar.lag.view import View

SLICE_NAMES = 20  # compared with a pattern between two yields: the worst pattern takes 0.4 ms for the worst name
MAX_REMEMBERED = 32


class Filter(NamedTuple):
    """Empty fields choose all. `pattern` is a shell pattern of the group's name, `at_least` a number of LagStatus."""

    namespace: str = ""
    pattern: str = ""
    at_least: int = 0


class Filters:
    """Evaluates filters."""

    def __init__(self) -> None:
        self._remembered: OrderedDict[tuple[str, str], tuple[int, Bools]] = OrderedDict()

    async def matching(self, view: View, wanted: Filter) -> Bools:
        """Which groups of a view match, by their numbers."""
        matches = view.kept
        if wanted.at_least:
            matches &= SEVERITIES[view.sums.status] >= severity(wanted.at_least)
        names = wanted[:2]
        if not any(names):
            return matches
        version, fits = self._remembered.get(names, (0, matches))
        if version != view.names_version:
            fits = await self._compared(view, *names)
            self._remembered[names] = view.names_version, fits
            while len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        return matches & fits

    @staticmethod
    async def _compared(view: View, namespace: str, pattern: str) -> Bools:
        match = re.compile(translate(pattern)).match if pattern else None
        fits = view.kept
        groups: Ints = np.flatnonzero(fits)
        for at in range(0, len(groups), SLICE_NAMES):
            for group in groups[at : at + SLICE_NAMES].tolist():
                key = view.groups[group]
                if (namespace and key.namespace != namespace) or (match and not match(key.group)):
                    fits[group] = False
            await others()
        return fits
