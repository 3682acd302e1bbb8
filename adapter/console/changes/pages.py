"""The pages of changes: a form, what it would change, its confirmation, and what came of it.

Only for an admin, and only where `access.changes` is set: for others these pages do not exist. Each page comes by GET and changes
nothing; each form leads to the next page, so that reload and back are harmless. What was confirmed is executed by a task of its
own: it goes on when the browser does not wait for it. Every change is an event of the console's audit log, with the person; the
adapters' audit logs have the person as the one who claims to call.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from adapter.console.access import csrf
from adapter.console.access.persons import Access, Known, known_of, may_change
from adapter.console.changes.plans import DryRun, End, EndRow, Plan, Plans, Result, State, rest_of
from adapter.console.changes.run import Adapters, Changer, NotPlannedError, token_reader
from adapter.console.changes.wish import Wish, wish_of
from adapter.console.pages import linker, page
from adapter.console.parts import Part
from adapter.errors import AdapterError, OverloadedError
from adapter.fleet.section import FleetSection
from adapter.look.shown import name as shown_name
from adapter.model.names import check_name
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.runtime.settings.reading import soon
from adapter.runtime.settings.secret_files import read_token
from adapter.runtime.telemetry import logs
from adapter.runtime.telemetry.logs import harmless

log = structlog.get_logger(__name__)
audit = logs.audit()

FIELDS = ("namespace", "group", "kind", "to", "offset", "time", "shift", "shards", "create", "to_group")
ROWS_SHOWN = 1_000
WAIT_S = 20.0  # for the end of a change, before the page says that it goes on
LOOK_AGAIN_S = 2
NO_PLAN = (
    "this change is not known here: it waited too long, was made in another session, or the console was started anew since. If "
    "you had confirmed it, it may have been done: look at the group and at what changed it, and begin again"
)


class Changes:
    """The routes, over what they need."""

    def __init__(
        self, access: Access, fleet: Adapters, section: FleetSection, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.access = access
        self.plans = Plans(clock)
        path = access.section.adapter_token_file
        self.changer = Changer(fleet, section, token_reader(section, _reader(path) if path else None))
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def form(self, request: Request) -> Response:
        """The form of a change, for one group."""
        self._admit(request)
        namespace = request.query_params.get("namespace") or DEFAULT_NAMESPACE
        return await self._form_page(request, {"namespace": namespace, "group": request.query_params.get("group", "")})

    async def plan(self, request: Request) -> Response:
        """Plan what a form asks for, and show it."""
        known, person = self._admit(request)
        form = await csrf.form_of(request, self.access.sessions, known.session, person)
        try:
            wish = await anyio.to_thread.run_sync(wish_of, form)
            dry_run = await self.changer.plan(wish, person)
            plan = self.plans.add(wish, dry_run, (person, known.session.id))
        except OverloadedError as error:
            return await self._form_page(request, form.fields, str(error), status=503)
        except AdapterError as error:
            return await self._form_page(request, form.fields, str(error), status=400)
        return RedirectResponse(linker(request)("change_plan", id=plan.id), 303)

    async def planned(self, request: Request) -> Response:
        """Show a plan, with the form that confirms it; or, once it was confirmed, lead to its result."""
        known, person = self._admit(request)
        plan = self._plan_of(request.query_params.get("id", ""), known, person)
        if plan.state is not State.WAITING:
            return RedirectResponse(linker(request)("change_result", id=plan.id), 303)
        return await self._plan_page(request, plan)

    async def execute(self, request: Request) -> Response:
        """Execute a plan that is confirmed by the name of the group."""
        known, person = self._admit(request)
        form = await csrf.form_of(request, self.access.sessions, known.session, person)
        plan = self._plan_of(form.text("id"), known, person)
        if plan.state is State.WAITING:
            group = plan.wish.changed_group.group
            if form.text("confirm") not in {group, shown_name(group)}:
                problem = "what you typed is not the name of the group; nothing was changed"
                return await self._plan_page(request, plan, problem, status=400)
            if form.text("seen") != plan.dry_run.digest:
                return await self._plan_page(
                    request, plan, "what would change is not what you saw; nothing was changed", status=409
                )
            if not plan.dry_run.changed:
                return await self._plan_page(request, plan, "there is nothing to change", status=400)
            plan.state = State.EXECUTING  # before anything is awaited: a second click comes too late
            task = asyncio.create_task(self._run(plan, person, _peer(request)), name=f"change {plan.id}")
            self._tasks[plan.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(plan.id, None))
        if plan.id in self._tasks:
            await asyncio.wait([self._tasks[plan.id]], timeout=WAIT_S)
        return RedirectResponse(linker(request)("change_result", id=plan.id), 303)

    async def result(self, request: Request) -> Response:
        """What came of a plan; while it is being executed, a page that loads itself again."""
        known, person = self._admit(request)
        plan = self._plan_of(request.query_params.get("id", ""), known, person)
        if plan.state is State.WAITING:
            return RedirectResponse(linker(request)("change_plan", id=plan.id), 303)
        response = await self._result_page(request, plan)
        if plan.state is State.EXECUTING:
            response.headers["Refresh"] = str(LOOK_AGAIN_S)
        return response

    async def rest(self, request: Request) -> Response:
        """Plan what a change that has ended has left to do, and show it."""
        known, person = self._admit(request)
        form = await csrf.form_of(request, self.access.sessions, known.session, person)
        ended = self._plan_of(form.text("id"), known, person)
        if ended.result is None or ended.result.complete:
            return RedirectResponse(linker(request)("change_result", id=ended.id), 303)
        wish = rest_of(ended.wish, ended.result)
        try:
            plan = self.plans.add(wish, await self.changer.plan(wish, person), (person, known.session.id))
        except AdapterError as error:
            status = 503 if isinstance(error, OverloadedError) else 400
            return await self._result_page(request, ended, str(error), status=status)
        return RedirectResponse(linker(request)("change_plan", id=plan.id), 303)

    async def _run(self, plan: Plan, person: str, peer: str) -> None:
        said = {"person": harmless(person), "peer": peer, **_audited(plan)}
        audit.info("console.change", outcome="begun", **said)
        try:
            found = await self.changer.execute(plan.wish, plan.dry_run, person)
        except NotPlannedError as error:
            self._ask_anew(plan, plan.dry_run, f"Nothing was changed: {error}")
            audit.info("console.change", outcome="not begun", reason=harmless(str(error)), **said)
        except BaseException as error:
            # A bug, or the end of this process: nobody knows how far it came.
            audit.info("console.change", outcome="unknown", reason=type(error).__name__, **said)
            rows = [EndRow(row, End.UNKNOWN, None) for row in plan.dry_run.changed]
            self.plans.ended(
                plan, Result(rows, ["this console failed while it made the change; its log says why"], [], read_back=False)
            )
            if not isinstance(error, Exception):
                raise
            log.exception("console.change_failed", plan=plan.id)
        else:
            if isinstance(found, DryRun):
                other = found.other_than(plan.dry_run)
                self._ask_anew(
                    plan, found, f"Nothing was changed: what would change now is not what you confirmed: {other}. Look again."
                )
                audit.info("console.change", outcome="not as confirmed", reason=harmless(other), **said)
                return
            self.plans.ended(plan, found)
            ends = {end.value: count for end in End if (count := found.count(end))}
            audit.info("console.change", outcome="done" if found.complete else "incomplete", shards=ends, **said)

    @staticmethod
    def _ask_anew(plan: Plan, dry_run: DryRun, said: str) -> None:
        plan.dry_run, plan.said, plan.state = dry_run, said, State.WAITING

    def _admit(self, request: Request) -> tuple[Known, str]:
        """The admin that makes a request. Raises HTTPException: 404 where there are no changes, 403 for who may not."""
        known = known_of(request)
        if not self.access.section.changes:
            raise HTTPException(404, "this console changes nothing: access.changes is not set")
        if known.person is None or not may_change(self.access, known.person):
            raise HTTPException(403, "only an admin may change offsets. Nothing was changed")
        return known, known.person.name

    def _plan_of(self, name: str, known: Known, person: str) -> Plan:
        plan = self.plans.get(name, (person, known.session.id))
        if plan is None:
            raise HTTPException(404, NO_PLAN)
        return plan

    async def _form_page(self, request: Request, fields: Mapping[str, str], problem: str = "", *, status: int = 200) -> Response:
        values = {**dict.fromkeys(FIELDS, ""), "kind": "reset", **fields}
        try:
            check_name(values.get("namespace") or DEFAULT_NAMESPACE, "namespace")
            check_name(values.get("group", ""), "group")
        except AdapterError as error:
            raise HTTPException(400, str(error)) from error
        return await page(request, "change.html", status=status, nav="groups", fields=values, problem=problem)

    async def _result_page(self, request: Request, plan: Plan, problem: str = "", *, status: int = 200) -> Response:
        return await page(
            request,
            "change_result.html",
            status=status,
            nav="groups",
            plan=plan,
            result=plan.result,
            problem=problem,
            most=ROWS_SHOWN,
            adapter_name=self.changer.name,
            End=End,
            **_about(plan.wish),
        )

    async def _plan_page(self, request: Request, plan: Plan, problem: str = "", *, status: int = 200) -> Response:
        return await page(
            request,
            "change_plan.html",
            status=status,
            nav="groups",
            plan=plan,
            dry_run=plan.dry_run,
            problem=problem,
            most=ROWS_SHOWN,
            adapter_name=self.changer.name,
            **_about(plan.wish),
        )


def part(changes: Changes) -> Part:
    """The routes of changes."""
    routes = [
        Route("/change", changes.form, methods=["GET"], name="change"),
        Route("/change", changes.plan, methods=["POST"], name="change_dry_run"),
        Route("/change/plan", changes.planned, methods=["GET"], name="change_plan"),
        Route("/change/execute", changes.execute, methods=["POST"], name="change_execute"),
        Route("/change/rest", changes.rest, methods=["POST"], name="change_rest"),
        Route("/change/result", changes.result, methods=["GET"], name="change_result"),
    ]
    return Part(routes)


def _reader(path: Path) -> Callable[[], str]:
    return lambda: soon(lambda: read_token(path, "access.adapter_token_file"))


def _about(wish: Wish) -> dict[str, Any]:
    """What the pages say of a change."""
    what = {"reset": "reset", "delete": "delete", "clone": "clone"}[wish.kind]
    return {"wish": wish, "what": what, "target": wish.changed_group}


def _audited(plan: Plan) -> dict[str, Any]:
    wish = plan.wish
    return {
        "change": wish.kind,
        "namespace": harmless(wish.group.namespace),
        "group": harmless(wish.group.group),
        "to": harmless(wish.to_group if wish.kind == "clone" else wish.to),
        "plan": plan.id,
        "offsets": len(plan.dry_run.changed),
    }


def _peer(request: Request) -> str:
    return request.client.host if request.client else "unix"
