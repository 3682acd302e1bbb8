"""Bugs of reloads: settings that are taken by half or not at all, and certificates that do not belong together."""

from tests.mutants.mutant import Mutant

_RELOADING = "unit/runtime/test_reloading.py::"
_POLICIES = "unit/sidecar/engine/test_policy_change.py::"
_CERTIFICATES = "unit/runtime/test_certificates.py::"
_SECRETS = "unit/runtime/test_secret_files.py::"
_RELOAD = "integration/test_reload.py::"

RELOAD_MUTANTS = (
    Mutant(
        "policies-are-read-behind-an-await",
        "sidecar/engine/policies.py",
        "        policies = policies or self.policies\n        if policies.all_write_back:\n",
        "        policies = self\n        self.all_write_back = self.policies.all_write_back\n"
        "        self.writes_through = lambda group: self.policies.writes_through(group)\n        if policies.all_write_back:\n",
        "a group that changes its policy meanwhile is in neither half, and acknowledged without being stored",
        (_POLICIES + "test_no_group_of_a_commit_falls_between_two_policies",),
    ),
    Mutant(
        "the-answer-has-another-policy-than-the-commit",
        "sidecar/api/commits.py",
        "router.commit(checked.parsed.commit, prepared.policies))",
        "router.commit(checked.parsed.commit))",
        "a reply says that the Meta Service has what only this adapter has",
        (_POLICIES + "test_a_commit_prepared_before_does_not_claim_what_it_is_not",),
    ),
    Mutant(
        "the-fast-path-does-not-notice",
        "sidecar/engine/core.py",
        "            self.fast_path.possible = False\n        # Else",
        "            pass\n        # Else",
        "commits of a group that is written through are acknowledged without the Meta Service",
        (_POLICIES + "test_the_fast_path_closes_before_the_next_commit",),
    ),
    Mutant(
        "the-fast-path-stays-closed",
        "sidecar/engine/core.py",
        "        asyncio.get_running_loop().call_soon(self._open_fast_path)\n",
        "",
        "each commit costs ten times as much until the next restart",
        (_POLICIES + "test_a_commit_is_answered_by_the_policy_that_is_in_force",),
    ),
    Mutant(
        "a-stream-overtakes-itself",
        "sidecar/api/commit_stream.py",
        "(_is_ordered(request) or self._has_other_policies())",
        "_is_ordered(request)",
        "a commit looks superseded by a later one of the same consumer",
        (_POLICIES + "test_a_stream_keeps_its_order_when_the_policies_change",),
    ),
    Mutant(
        "what-needs-a-restart-is-taken",
        "runtime/live.py",
        "        return name in self.names\n",
        "        return name in self.names or before != after\n",
        "the status says that every commit is synced, and none is",
        (_RELOADING + "test_what_may_change_is_taken_and_the_rest_is_named",),
    ),
    Mutant(
        "client-certificates-begin-without-a-restart",
        "runtime/live.py",
        "            return before is not None and after is not None\n",
        "            return True\n",
        "the settings say that clients need a certificate, and everybody is let in",
        (_RELOADING + "test_tls_is_exchanged_but_neither_begun_nor_ended",),
    ),
    Mutant(
        "a-refused-file-is-taken-by-half",
        "runtime/reloading.py",
        "            prepared = await self._prepare(settings)\n        except ConfigError as error:\n            self.last_error",
        "            prepared = []\n            for prepare in self._parts:\n                prepared.append(prepare(settings))\n"
        "                _apply(prepared[-1:])\n        except ConfigError as error:\n            self.last_error",
        "a bad certificate leaves the policies of the new file in force, and the status says otherwise",
        (_RELOADING + "test_one_refusal_keeps_every_component_as_it_was",),
    ),
    Mutant(
        "a-refusal-ends-what-listens-to-signals",
        "runtime/reloading.py",
        "        except ConfigError:\n            return  # logged already\n",
        "        except ZeroDivisionError:\n            return\n",
        "after a bad file no later one is taken by SIGHUP before another one comes",
        (_RELOADING + "test_a_refusal_at_a_signal_is_logged_once",),
    ),
    Mutant(
        "a-change-before-the-signals-are-handled-is-lost",
        "runtime/reloading.py",
        "            if self.differs:\n                self.ask()\n",
        "",
        "a SIGHUP in the first second changes nothing, and nobody is told",
        (_RELOADING + "test_a_signal_reloads_and_never_ends_the_process",),
    ),
    Mutant(
        "replaced-files-are-not-noticed",
        "runtime/reloading.py",
        "            if replaced:\n                _apply(prepared)\n",
        "            if replaced:\n",
        "a certificate that Kubernetes renewed expires in the process",
        (_RELOADING + "test_a_replaced_file_is_taken_without_a_signal",),
    ),
    Mutant(
        "a-handshake-keeps-the-old-certificate",
        "runtime/certificates.py",
        "            self._configuration = _configuration(files)\n\n        return Prepared",
        "            pass\n\n        return Prepared",
        "new connections see a certificate that has expired",
        (_CERTIFICATES + "test_a_handshake_gets_new_files_once_and_only_whole",),
    ),
    Mutant(
        "a-key-of-another-certificate",
        "runtime/certificates.py",
        "            context.load_cert_chain(cert, key, password=_no_password)\n",
        "            pass\n",
        "half a replacement is taken, and no client can connect any more",
        (_CERTIFICATES + "test_unusable_files_are_named_with_the_reason",),
    ),
    Mutant(
        "a-file-of-root-is-open-to-all",
        "runtime/secret_files.py",
        "        return stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO\n",
        "        return stat.S_IWGRP | stat.S_IXGRP\n",
        "every process of the machine can read the token",
        (_SECRETS + "test_a_secret_that_others_can_open_is_refused",),
    ),
    Mutant(
        "a-group-may-read-any-token",
        "runtime/secret_files.py",
        "    if owner == 0:\n",
        "    if owner >= 0:\n",
        "a token that its owner left open to a group of people is used",
        (_SECRETS + "test_a_secret_that_others_can_open_is_refused",),
    ),
    Mutant(
        "an-answer-of-a-removed-endpoint-counts",
        "meta/endpoints.py",
        "        self._stub(name)  # What",
        "        # What",
        "an offset is clean that only the former Meta Service has",
        (_RELOAD + "test_an_answer_of_a_removed_endpoint_does_not_count",),
    ),
    Mutant(
        "another-meta-service-is-not-compared",
        "meta/store_marks.py",
        "        return self.losses + self.moves\n",
        "        return self.losses\n",
        "what the former Meta Service had acknowledged never gets to the new one",
        ("unit/sidecar/engine/test_meta_watch.py::test_another_meta_service_gets_what_the_former_one_had_acknowledged",),
    ),
    Mutant(
        "a-flush-pause-keeps-its-length",
        "runtime/live.py",
        "            self._changed.set()\n",
        "",
        "what was acknowledged is not flushed for a minute that nobody wants any more",
        (_POLICIES + "test_new_flush_times_end_the_pauses_that_are_under_way",),
    ),
    Mutant(
        "a-backoff-keeps-its-length",
        "runtime/retry.py",
        "        self._skipped += 1\n        self._wake()\n",
        "",
        "after the endpoints were corrected, nothing is flushed for as long as the old backoff says",
        (_POLICIES + "test_new_flush_times_end_the_pauses_that_are_under_way",),
    ),
    Mutant(
        "sighup-ends-a-start",
        "__main__.py",
        "    signal.signal(signal.SIGHUP, signal.SIG_IGN)\n",
        "    pass\n",
        "a reload of all brokers ends those that are starting",
        ("acceptance/test_reload.py::test_a_server_ignores_sighup_before_it_imports_anything",),
    ),
)
