"""Mutants of metrics that alerts and dashboards ask for, and of the alerts themselves."""

from tests.mutants.mutant import Mutant

_SOURCE = "../deploy/monitoring/source"
_EXIST = ("monitoring/test_expressions.py::test_every_metric_and_label_of_every_expression_exists",)
_FIRES = ("monitoring/test_alerts.py::test_an_alert_fires_within_its_time_says_the_values_and_is_resolved",)
_RESTART = ("monitoring/test_alerts.py::test_a_restart_does_not_resolve_an_alert_that_fires",)
_ROLLING = ("monitoring/test_alerts.py::test_no_alert_fires_while_processes_are_restarted_one_after_the_other",)
_SPACE = "unit/runtime/durable/test_disk_space.py::"
_RAFT = "unit/metaservice/etcd/test_raft_watch.py::"

MONITORING_MUTANTS = (
    Mutant(
        "a-metric-is-renamed",
        "sidecar/api/gauges.py",
        '"oldest_dirty_age_seconds": (',
        '"oldest_dirty_seconds": (',
        "the alert for offsets that do not arrive asks for a metric that is gone, and never fires",
        _EXIST,
    ),
    Mutant(
        "a-label-is-renamed",
        "metaservice/etcd/raft_watch.py",
        'labels=["raft_group"]',
        'labels=["group"]',
        "the alert for a Raft group without a leader does not say which",
        _EXIST,
    ),
    Mutant(
        "a-comparison-is-turned",
        f"{_SOURCE}/alerts.py",
        'expr="offset:store_disk_free:ratio < 0.10"',
        'expr="offset:store_disk_free:ratio > 0.10"',
        "the alert fires while the disk is empty, and not when it is full",
        _FIRES,
    ),
    Mutant(
        "a-threshold-in-another-unit",
        f"{_SOURCE}/alerts.py",
        "offset_adapter_oldest_dirty_age_seconds > <30 s>",
        "offset_adapter_oldest_dirty_age_seconds > <30000 s>",
        "offsets that do not arrive are told after eight hours",
        _FIRES,
    ),
    Mutant(
        "no-patience-at-a-restart",
        f"{_SOURCE}/alerts.py",
        'and offset_adapter_dirty_keys > 0",\n        after="4m"',
        'and offset_adapter_dirty_keys > 0",\n        after="1m"',
        "each rolling restart of the Meta Service calls somebody",
        _ROLLING,
    ),
    Mutant(
        "alerts-flap",
        f"{_SOURCE}/model.py",
        '    keep: str = "2m"',
        '    keep: str = "0s"',
        "an alert is resolved and fires anew whenever a scrape fails",
        _RESTART,
    ),
    Mutant(
        "the-default-objective-wins",
        f"{_SOURCE}/recordings.py",
        '" or ".join([*parts, _objective("", default_s)])',
        '" or ".join([_objective("", default_s), *parts])',
        "a group's own objective has no effect",
        ("monitoring/test_files.py::test_a_group_has_the_first_objective_that_fits_its_name",),
    ),
    Mutant(
        "a-disk-that-hangs-is-asked-again",
        "runtime/durable/disk_space.py",
        "        if self._asking and self._asking.is_alive():\n            return None\n",
        "",
        "each scrape adds a thread that never ends while a disk hangs",
        (f"{_SPACE}test_a_disk_that_hangs_is_asked_once_and_its_metrics_are_absent_until_it_answers",),
    ),
    Mutant(
        "space-for-root-counts",
        "runtime/durable/disk_space.py",
        "found.f_bavail * found.f_frsize",
        "found.f_bfree * found.f_frsize",
        "the disk is full for the adapter, and its metric says that a twentieth is free",
        (f"{_SPACE}test_free_is_what_is_left_without_privileges",),
    ),
    Mutant(
        "the-quota-of-etcd-is-ignored",
        "metaservice/etcd/raft_watch.py",
        "member.quota_bytes or self._quota_bytes",
        "self._quota_bytes",
        "the alert for the quota fires at a quota that etcd does not have, or too late",
        (f"{_RAFT}test_a_quota_that_members_tell_counts_and_of_several_the_smallest",),
    ),
    Mutant(
        "a-change-is-not-counted",
        "sidecar/engine/reset_writer.py",
        "            self._metrics.changed(kind)  # before",
        "            pass  # before",
        "nobody is told that somebody reset a group",
        ("integration/test_operating_metrics.py::test_executed_changes_are_counted_by_kind_and_dry_runs_are_not",),
    ),
    Mutant(
        "an-idle-hour-counts-as-unsynced",
        "sidecar/api/gauges.py",
        "store.synced_seq >= self._seq:",
        "store.synced_seq > self._seq:",
        "the first write after an idle hour fires the alert for a sync that hangs",
        ("unit/sidecar/api/test_gauges.py::test_an_age_is_that_of_a_write_that_a_scrape_saw_unsynced",),
    ),
)
