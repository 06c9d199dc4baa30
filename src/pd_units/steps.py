"""Takes the steps of an install, a rollback or a restart, each waited for where the schedule says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pd_units.errors import ExitCode
from pd_units.index import Index
from pd_units.naming import Names
from pd_units.observe import UnitReport, UnitState
from pd_units.ports import ActiveState, Clock, Manager
from pd_units.routing import Router, is_routed
from pd_units.schedule import Do, Step
from pd_units.stopping import stop_unit
from pd_units.verdicts import EndOfLife, read_last_end
from pd_units.waiting import DeploymentReport, Outcome, Watcher, wait_until_ready, wait_until_serving

# The router's own start, after its backends: its worker check, and the first generation.
ROUTER_S = 180.0
# An instance that is ready, and gets no requests from the router for longer than this: something is wrong.
_SPARE_S = 60.0

Say = Callable[[str], None]


class FirstFailure:
    """Tells the first failed start of a unit that was started here, also when its restart goes on."""

    def __init__(self, names: Names, started: Sequence[str], since_wall: float) -> None:
        self._names, self._started, self._since = names, frozenset(started), since_wall

    def __call__(self, unit: UnitReport) -> bool:
        """Whether this unit's start has failed."""
        if unit.unit not in self._started:
            return unit.failed_for_good
        if unit.status.active_state is ActiveState.DEACTIVATING:
            return False  # its end is being recorded: the cause is known after that
        restarted = unit.status.n_restarts > 0 or unit.state is UnitState.RESTARTING
        return restarted or unit.failed_for_good

    def end(self, unit: UnitReport) -> EndOfLife | None:
        """How the failed life ended, also if the next one has begun."""
        if unit.end is not None:
            return unit.end
        last = read_last_end(self._names, unit.unit)
        return last if last is not None and last.ended >= self._since else None


class Stepper:
    """Takes steps on a deployment's units. `timeout_s` bounds each wait; None: as the deployment declares."""

    def __init__(
        self, manager: Manager, clock: Clock, say: Say, seen: Watcher, *, timeout_s: float | None
    ) -> None:
        self._manager, self._clock, self._say, self._seen = manager, clock, say, seen
        self._timeout_s = timeout_s
        self._drained: set[str] = set()

    def run(
        self, index: Index, steps: Sequence[Step], reasons: Mapping[str, str], *, wait: bool = True
    ) -> Outcome:
        """The outcome of the first wait that did not end well, or of all. Raises: HostError 30 to 33."""
        began = self._clock.wall()
        done = Outcome(exit_code=ExitCode.OK, message="done", reports=())
        for step in steps:
            for unit in step.units:
                self._manager.reset_failed(unit)  # explicit starts never run into a start limit
            if step.spares and wait:
                done = self._wait_for_spare(index, step)
                if done.exit_code:
                    return done
                self._take_out(index, step)
            self._take(step, reasons)
            if step.wait and wait:
                done = self.wait(index, step.units, began, only=step.units, routed=step.routed)
                if done.exit_code:
                    return done
        return done

    def _take(self, step: Step, reasons: Mapping[str, str]) -> None:
        for unit in step.units:
            why = f": {reasons[unit]}" if reasons.get(unit) and unit not in self._drained else ""
            if step.do is Do.STOP:
                self._say(f"stopping {unit}{why}")
                stop_unit(self._manager, self._clock, unit)
                self._drained.add(unit)  # its start, later, is of the same reason
            elif step.do is Do.RESTART:
                self._say(f"restarting {unit}{why}")
                self._manager.restart(unit)
            else:
                self._say(f"starting {unit}{why}")
                self._manager.start(unit)

    def _wait_for_spare(self, index: Index, step: Step) -> Outcome:
        """Wait until one of the step's spares serves: without it no pair would be left.

        The outcome is 41 if none does within a minute; nothing was taken away then.
        """
        outcome = wait_until_serving(
            self._manager, index, step.spares, timeout_s=_SPARE_S, clock=self._clock, seen=self._seen
        )
        if not outcome.exit_code:
            return outcome
        message = (
            f"{step.units[0]} was not restarted: none of {', '.join(step.spares)} serves, and no working "
            "pair would be left; --force does it all the same"
        )
        return Outcome(exit_code=ExitCode.NOT_READY, message=message, reports=outcome.reports)

    def _take_out(self, index: Index, step: Step) -> None:
        """Have the router send nothing more to what is about to restart."""
        router = self._router(index)
        for unit in index.units:
            if router is None or unit.unit not in step.units or not is_routed(unit):
                continue
            if router.take_out(unit.url):
                self._say(f"{unit.unit} gets no more requests from the router")

    def _router(self, index: Index) -> Router | None:
        if index.router is None:
            return None
        return Router(index.names, index.router, self._manager, self._clock, self._say)

    def _looked(self, reports: Sequence[DeploymentReport]) -> None:
        """Show what is so, and give a router back what it lacks and what is ready again."""
        self._seen(reports)
        for report in reports:
            router = self._router(report.index)
            if router is None or report.router is None or not report.router.missing:
                continue
            ready = [unit.declared.url for unit in report.units if unit.state is UnitState.READY]
            back = [url for url in report.router.missing if url in ready]
            if back:
                router.bring_back(back)

    def wait(
        self,
        index: Index,
        started: Sequence[str],
        began: float,
        *,
        only: Sequence[str] = (),
        routed: bool = True,
    ) -> Outcome:
        """Wait until the deployment is ready, or `only` its backends of these names.

        Without `routed`, these need not get requests from the router: it is not at its new address yet.
        """
        failing = FirstFailure(index.names, started, began)
        total_s = self._timeout_s if self._timeout_s is not None else 2 * index.timeout_s + ROUTER_S
        backends = {unit.unit for unit in index.backends} & set(only)
        chosen = backends or set(only)

        def selected(unit: UnitReport) -> bool:
            return not only or unit.unit in chosen

        return wait_until_ready(
            self._manager,
            [index],
            timeout_s=total_s,
            clock=self._clock,
            seen=self._looked if routed else self._seen,
            selected=selected,
            routed=bool(only) and routed,
            failing=failing,
            end_of=failing.end,
        )
