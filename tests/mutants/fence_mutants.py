"""The bugs of fences, moves and rebalances that only some interleavings show: the exploration finds them. See mutants.py."""

from tests.mutants.mutant import Mutant

_TEST = "exploration/test_exploration.py::test_every_interleaving_of_a_small_scope_keeps_all_properties"
_UNIT = "unit/metaservice/etcd/test_rebalancing.py"
_STORES = "unit/metaservice/etcd/test_broker_stores.py"
_MODEL = "model/test_etcd.py"
_SAVE = (f"{_TEST}[save]",)

FENCE_MUTANTS = (
    Mutant(
        "fence-writes-anywhere",
        "metaservice/etcd/txn_batcher.py",
        "        request = etcd_pb.TxnRequest(compare=[batch[0][0].guard])\n",
        "        request = etcd_pb.TxnRequest(compare=[batch[0][0].guard] if self._writer.endswith(b'rebalance') else [])\n",
        "a Meta Service that has not heard of the change saves where nobody reads any more",
        _SAVE,
    ),
    Mutant(
        "fence-refusal-fails-the-save",
        "metaservice/etcd/engine.py",
        "                await self.fences.reload(layout)\n            except LayoutChangedError:\n",
        "                break\n            except LayoutChangedError:\n",
        "saves are refused whenever the layout changes, although nothing is out of order",
        _SAVE,
    ),
    Mutant(
        "move-is-done-before-it-is-copied",
        "metaservice/etcd/rebalancing.py",
        "                await self._copy_from(name, layout, watcher)\n",
        "                pass\n",
        "what no client touched during a rebalance is deleted with the old copies, or is not found",
        _SAVE,
    ),
    Mutant(
        "move-notes-its-position-before-it-has-copied",
        "metaservice/etcd/rebalancing.py",
        "        async for rows in self._pages(name, layout, position, self._keys.offsets):\n"
        "            for batch in _batches(self._rows_to_move(name, layout, rows), self._batch):\n"
        "                async with _throttled():\n"
        "                    await _retrying(self._migration.copy, batch, layout)\n",
        "        async for rows in self._pages(name, layout, position, self._keys.offsets):\n"
        "            await self._save_position(name, layout, rows[-1].where + b'\\0')\n"
        "            for batch in _batches(self._rows_to_move(name, layout, rows), self._batch):\n"
        "                async with _throttled():\n"
        "                    await _retrying(self._migration.copy, batch, layout)\n",
        "a rebalance that is killed at the wrong instant never copies a page",
        (f"{_TEST}[kill]",),
    ),
    Mutant(
        "move-forgets-its-old-copies",
        "metaservice/etcd/sharding.py",
        "        return self._replace(version=self.version + 1, moving_from=(), leftovers_in=self.losing)\n",
        "        return self._replace(version=self.version + 1, moving_from=(), leftovers_in=())\n",
        "old copies stay, and come back with the next move",
        _SAVE,
    ),
    Mutant(
        "move-reads-at-home-before-it-has-copied",
        "metaservice/etcd/engine.py",
        "        await self._migration.ensure_copied(groups.values(), layout)\n",
        "",
        "during a rebalance a consumer finds nothing and begins anew",
        _SAVE,
    ),
    Mutant(
        "move-cleans-what-is-at-home",
        "metaservice/etcd/rebalancing.py",
        "            if layout.home(group) != name:\n",
        "            if True:\n",
        "a rebalance deletes offsets that did not move",
        _SAVE,
    ),
    Mutant(
        "move-takes-copies-for-foreign-offsets",
        "metaservice/etcd/rebalancing.py",
        "                if await _retrying(self._fences.reload, layout) != layout:\n",
        "                if layout is None:\n",
        "a second rebalance ends, and advises to delete what the first one has moved",
        (f"{_UNIT}::test_a_rebalance_that_is_overtaken_takes_the_others_copies_for_no_foreign_offsets",),
    ),
    Mutant(
        "move-repeats-a-change-that-comes-too-late",
        "metaservice/etcd/rebalancing.py",
        "            raise LayoutChangedError(str(error)) from error\n",
        "            raise ContendedError(str(error)) from error\n",
        "of two rebalances at once, one does nothing for a minute",
        (f"{_UNIT}::test_a_rebalance_whose_change_comes_too_late_goes_on_at_once",),
    ),
    Mutant(
        "report-stays-where-it-was",
        "metaservice/etcd/broker_stores.py",
        "_is_known(kept, at_home)",
        "_is_known(kept, known)",
        "while offsets move, each report waits for the Raft group where the one before is, silent or not",
        (_STORES,),
    ),
    Mutant(
        "move-leaves-the-reports-of-stores",
        "metaservice/etcd/rebalancing.py",
        "                    await self._copy_reports(reports, layout)\n",
        "",
        "an adapter that was down during a rebalance does not notice that its store was put back or replaced",
        (f"{_UNIT}::test_the_report_of_a_store_moves_although_its_adapter_is_down", f"{_TEST}[kill]"),
    ),
    Mutant(
        "move-overwrites-a-later-report",
        "metaservice/etcd/broker_stores.py",
        "        inner.compare.add(result=etcd_pb.Compare.GREATER, target=_TARGET_VALUE, key=report.where, value=report.value)\n",
        "        inner.compare.add(result=etcd_pb.Compare.GREATER, target=_VERSION, key=report.where, version=1_000)\n",
        "after a rebalance an adapter takes its older report for a loss of the Meta Service",
        (f"{_UNIT}::test_what_an_adapter_reports_while_its_report_moves_stands",),
    ),
    Mutant(
        "report-is-nothing-while-its-old-home-is-silent",
        "metaservice/etcd/broker_stores.py",
        "            if not standing:\n",
        "            if False:\n",
        "during a rebalance an adapter that starts beside a silent Raft group does not notice that its store was put back",
        (f"{_STORES}::test_while_a_report_moves_nobody_is_told_less_than_what_its_old_home_has",),
    ),
    Mutant(
        "report-is-older-by-a-clock",
        "metaservice/etcd/broker_stores.py",
        "max(now_ms, known.reported_at_ms + 1) if known else now_ms",
        "now_ms",
        "where clocks of Meta Service processes differ, an older report is told, which looks like a loss",
        (f"{_STORES}::test_the_later_one_of_two_reports_is_told_whatever_the_clocks_say",),
    ),
    Mutant(
        "silent-group-fails-all-saves",
        "metaservice/etcd/engine.py",
        "        if errors and len(errors) == len(items):\n",
        "        if errors:\n",
        "one Raft group that does not answer keeps all offsets dirty",
        (f"{_MODEL}::test_what_belongs_into_a_raft_group_that_answers_is_flushed_beside_a_silent_one",),
    ),
    Mutant(
        "marks-of-groups-that-were-not-asked",
        "metaservice/etcd/engine.py",
        "            return list(marks.values())\n",
        "            pass\n",
        "beside a silent Raft group, an adapter takes the older answer of another process for a loss",
        (f"{_MODEL}::test_what_belongs_into_a_raft_group_that_answers_is_flushed_beside_a_silent_one",),
    ),
)
