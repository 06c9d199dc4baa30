"""Stops units and waits until they are down: a stopped target does not wait for its members."""

from __future__ import annotations

from pd_units.errors import ExitCode, HostError
from pd_units.ports import ActiveState, Clock, Manager

STOP_TIMEOUT_S = 900.0


def stop_unit(manager: Manager, clock: Clock, unit: str) -> None:
    """Stop a unit and wait until it is down. Raises: HostError 33 if it does not stop."""
    manager.watch([unit])
    if not manager.unit(unit).exists:
        return
    manager.stop(unit)
    deadline = clock.monotonic() + STOP_TIMEOUT_S
    while True:
        status = manager.unit(unit)
        if status.active_state in (ActiveState.INACTIVE, ActiveState.FAILED) and not status.job_id:
            break
        if clock.monotonic() > deadline:
            raise HostError(
                f"{unit} does not stop",
                detail=f"still {status.active_state} after {STOP_TIMEOUT_S:g} s",
                hint=f"systemctl kill --signal=SIGKILL {unit}",
                exit_code=ExitCode.JOB_WITHOUT_RUN,
            )
        manager.pump(0.5)
    if status.active_state is ActiveState.FAILED:
        manager.reset_failed(unit)  # an engine that ends its drain by SIGKILL leaves `failed` behind
