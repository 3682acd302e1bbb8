"""Mutants of a restart: sockets of a service manager, how clients are asked to leave, and what the service manager is told."""

from tests.mutants.mutant import Mutant

RESTART = "durability/test_restart.py"
UNDER_LOAD = f"{RESTART}::test_restarts_under_load_refuse_no_commit_and_lose_none"
BETWEEN = f"{RESTART}::test_who_connects_between_two_processes_is_served_by_the_second"
SOCKETS = "unit/runtime/serving/test_activation.py"
LEAVING = "integration/http2/test_leaving.py"

RESTART_MUTANTS = (
    Mutant(
        "nobody-is-asked-to-leave",
        "runtime/serving/http2/control.py",
        "        self._out.append(frames.go_away(frames.ID_MAX, Code.NO_ERROR))\n",
        "",
        "clients learn of the stop by calls that fail",
        (f"{LEAVING}::test_a_call_that_was_on_its_way_is_answered_before_the_connection_ends",),
    ),
    Mutant(
        "one-answer-shows-that-no-call-is-on-its-way",
        "runtime/serving/http2/control.py",
        "ROUNDS = 2 ",
        "ROUNDS = 1 ",
        "a client that answers PINGs ahead of the calls that it has begun, as tonic does, has some refused",
        (f"{LEAVING}::test_a_call_that_was_on_its_way_is_answered_before_the_connection_ends",),
    ),
    Mutant(
        "connections-are-closed-before-their-clients-know",
        "runtime/serving/http2/server.py",
        "            if now - self._asked_to_leave < ASKED_S:\n                return\n",
        "",
        "a call that is on its way when the server says its last one is not done",
        (f"{LEAVING}::test_a_call_that_was_on_its_way_is_answered_before_the_connection_ends",),
    ),
    Mutant(
        "the-end-of-the-output-comes-before-the-last-call-is-named",
        "runtime/serving/http2/server.py",
        "            self.connection.go_away()\n            self._flush()\n        if not",
        "            self.connection.go_away()\n            self._told_all = now\n            self._flush()\n        if not",
        "a client does not learn that a call was not begun, and reports it as failed",
        (f"{LEAVING}::test_a_client_that_acknowledges_nothing_is_told_the_last_call",),
    ),
    Mutant(
        "a-connection-that-was-just-accepted-is-forgotten",
        "runtime/serving/http2/server.py",
        "        if self._server.leaving:\n            self.drain()  # it was accepted before the listening socket was closed\n",
        "",
        "who connected in the moment of the stop sends a commit to a server that goes away",
        (f"{LEAVING}::test_a_connection_that_was_accepted_in_the_moment_of_the_stop_is_asked_to_leave",),
    ),
    Mutant(
        "the-server-accepts-while-clients-leave",
        "runtime/serving/http2/server.py",
        "        for server in self._listening:\n            server.close()\n        self._listening.clear()\n",
        "",
        "connections come faster than they leave, and each is one more that the stop breaks off",
        (f"{LEAVING}::test_who_connects_after_the_stop_waits_in_the_backlog",),
    ),
    Mutant(
        "commits-are-refused-before-clients-have-left",
        "sidecar/process.py",
        "        await server.drained(until - anyio.current_time())\n        self.state.enter(State.STOPPING)\n",
        "        self.state.enter(State.STOPPING)\n        await server.drained(until - anyio.current_time())\n",
        "commits that came before the client knew of the stop are refused",
        (f"{LEAVING}::test_a_commit_that_was_on_its_way_at_the_stop_is_taken",),
    ),
    Mutant(
        "a-socket-of-the-service-manager-is-unlinked",
        "runtime/serving/listener.py",
        "        if unix_path and own and own == _file_at(unix_path):\n",
        "        if unix_path:\n",
        "nobody can connect to the Unix socket after the first restart",
        (BETWEEN,),
    ),
    Mutant(
        "the-socket-of-the-next-process-is-unlinked",
        "runtime/serving/listener.py",
        "        if unix_path and own and own == _file_at(unix_path):\n",
        "        if unix_path and own:\n",
        "the next process serves, and nobody can connect to its Unix socket",
        ("integration/test_listen.py::test_the_socket_of_the_next_process_is_left_alone",),
    ),
    Mutant(
        "waiting-clients-are-accepted-at-once",
        "runtime/serving/listener.py",
        " for each in handed.unix]\n",
        " for each in handed.unix]\n        asyncio.get_running_loop().create_task(self.accept_waiting())\n",
        "who waited through a restart is refused, because the adapter still recovers",
        (BETWEEN, UNDER_LOAD),
    ),
    Mutant(
        "ready-is-said-before-the-recovery",
        "sidecar/process.py",
        "        await server.accept_waiting()\n",
        "        await server.accept_waiting()\n        manager().ready()\n",
        "the service manager starts brokers whose reads are refused",
        (f"{RESTART}::test_ready_is_said_after_the_recovery_and_stopping_before_the_flush",),
    ),
    Mutant(
        "a-long-stop-is-not-told",
        "runtime/notify.py",
        '        self._passing = True\n        self.send("STOPPING=1")\n',
        '        self.send("STOPPING=1")\n',
        "a stop that flushes for longer than the service manager's limit is killed",
        (f"{RESTART}::test_ready_is_said_after_the_recovery_and_stopping_before_the_flush",),
    ),
    Mutant(
        "any-tcp-socket-is-taken",
        "runtime/serving/activation.py",
        "    return address in wanted and port in {0, handed_port}",
        "    return address in wanted",
        "the adapter serves a port that no client knows",
        (f"{SOCKETS}::test_another_tcp_address_is_an_error_that_names_both",),
    ),
    Mutant(
        "sockets-of-another-process-are-taken",
        "runtime/serving/activation.py",
        "    if not pid or pid != str(os.getpid()):",
        "    if not pid:",
        "a process takes descriptors that are something else in it",
        (f"{SOCKETS}::test_what_is_for_another_process_is_left_alone",),
    ),
    Mutant(
        "a-client-that-is-gone-ends-the-stop",
        "runtime/serving/http2/server.py",
        "        except OSError:  # the client has gone, and the event loop has not read that so far\n",
        "        except BlockingIOError:\n",
        "a client that leaves in the moment of a stop ends it: nothing is flushed, and the exit code is 1",
        ("integration/http2/test_leaving.py::test_a_client_that_is_gone_holds_up_no_stop",),
    ),
)
