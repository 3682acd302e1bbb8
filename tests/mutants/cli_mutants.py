"""Bugs of the command: what it selects, prints, and what the doctor does beside looking."""

from tests.mutants.mutant import Mutant

TABLE = "unit/cli/test_table.py::"
DOCTOR = "acceptance/test_doctor.py::"
DISK = "unit/cli/doctor/test_disk.py::"

CLI_MUTANTS = (
    Mutant(
        "reset-of-all-groups-takes-every-shard",
        "cli/offsets_change.py",
        "        if not (names or topics) or row.shard in names or topics & topics_of(row.shard, row.topic):\n    ",
        "    ",
        "offsets reset --all-groups --topic t moves the other topics too",
        ("acceptance/test_offsets.py::test_every_group_is_reset_and_set_back_from_a_file",),
    ),
    Mutant(
        "plan-leaves-its-namespace",
        "formats/reset_plan_file.py",
        "elif entry.namespace != group.namespace:",
        "elif False:",
        "a plan for all groups of one namespace resets groups of another",
        ("unit/cli/test_offsets.py::test_a_plan_for_all_groups_names_each_of_them_and_stays_in_its_namespace",),
    ),
    Mutant(
        "pattern-matches-a-part",
        "cli/groups_show.py",
        "self.pattern.fullmatch(group)",
        "self.pattern.search(group)",
        "--regex takes groups that only contain what was asked for",
        ("acceptance/test_output.py::test_groups_are_chosen_by_a_pattern_of_their_whole_name",),
    ),
    Mutant(
        "narrow-table-loses-a-value",
        "cli/table.py",
        "        if self._layout and not self._layout.shows(cells):\n            self.end_part()\n",
        "",
        "a value in a column that the first page left out is not printed",
        (f"{TABLE}test_a_narrow_terminal_first_leaves_out_what_is_empty",),
    ),
    Mutant(
        "csv-obeys-what-a-consumer-wrote",
        "cli/table.py",
        "return visible(value) if isinstance(value, str) else json_text(value)",
        "return value if isinstance(value, str) else json_text(value)",
        "metadata controls the terminal that CSV is printed on",
        (f"{TABLE}test_csv_is_quoted_as_others_read_it_and_harmless",),
    ),
    Mutant(
        "watch-eats-the-group",
        "cli/watch.py",
        'given = [f"--watch={EVERY_S:g}" if word == "--watch" else word for word in args[:end]]',
        "given = args[:end]",
        "groups describe --watch 5 takes the group 5 for seconds",
        ("unit/cli/test_watch.py::test_the_word_behind_watch_is_never_its_value",),
    ),
    Mutant(
        "watch-keeps-every-line",
        "cli/watch.py",
        "for line in lines[:room]]",
        "for line in lines]",
        "a long listing under --watch is held in memory, and scrolls away",
        ("unit/cli/test_watch.py::test_a_terminal_shows_one_look_cut_to_its_height",),
    ),
    Mutant(
        "doctor-starts-the-service",
        "cli/doctor/running.py",
        '    if not found.runs:\n        yield from _free("adapter", listen)\n        return\n',
        "",
        "the doctor connects to the socket that systemd holds, which starts the adapter",
        (f"{DOCTOR}test_it_calls_nobody_at_the_addresses_of_the_process",),
    ),
    Mutant(
        "doctor-leaves-a-file",
        "cli/doctor/disk.py",
        "os.open(there, os.O_TMPFILE | os.O_WRONLY, 0o600)",
        'os.open(there / ".sync", os.O_CREAT | os.O_WRONLY, 0o600)',
        "the measured file stays in the store's directory",
        (f"{DISK}test_a_sync_is_measured_and_leaves_nothing",),
    ),
    Mutant(
        "doctor-sees-the-last-certificate-to-end",
        "cli/doctor/secrets.py",
        "min(end for _, end in times)",
        "max(end for _, end in times)",
        "a bundle whose first CA has expired looks well",
        ("unit/cli/doctor/test_secrets.py::test_of_several_certificates_in_a_file_the_first_to_end_counts",),
    ),
    Mutant(
        "doctor-fails-without-a-code",
        "cli/doctor/command.py",
        "sys.exit(1 if any(row.state == FAIL for row in found) else 0)",
        "sys.exit(0)",
        "a script takes a broken machine for a good one",
        (f"{DOCTOR}test_a_configuration_that_the_process_would_refuse",),
    ),
    Mutant(
        "doctor-ignores-what-root-left",
        "cli/doctor/disk.py",
        "        strangers = _strangers(path, status.st_uid)\n",
        "        strangers: list[Path] = []\n",
        "files that one start by root left in the store stop the service, and the doctor says all is well",
        (f"{DISK}test_a_file_that_another_user_left_in_the_store",),
    ),
)
