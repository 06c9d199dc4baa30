"""The systemd manager over D-Bus. The only module that imports pydbus and gi.

pydbus gives the connection; calls go through it with an explicit type and a timeout, because pydbus's own
proxies introspect at every `get()` and its properties wait for ever (docs/adr/0002).
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from pd_units.adapters.interrupts import DeferredInterrupt
from pd_units.errors import ExitCode, HostError
from pd_units.ports import ActiveState, UnitStatus

_DEST = "org.freedesktop.systemd1"
_ROOT = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_UNIT = "org.freedesktop.systemd1.Unit"
_PROPERTIES = "org.freedesktop.DBus.Properties"

_NO_ANSWER = (
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.Timeout",
    "org.freedesktop.DBus.Error.TimedOut",
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.Disconnected",
)
_DENIED = (
    "org.freedesktop.DBus.Error.AccessDenied",
    "org.freedesktop.DBus.Error.AuthFailed",
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
)


class SystemdManager:
    """`ports.Manager` on the system bus of this host.

    Raises: HostError 30 (no bus, no manager, no answer), 31 (not authorised), 32 (a call failed).
    Source: org.freedesktop.systemd1(5), systemd 252.
    """

    def __init__(self, *, timeout_s: float = 25.0, reload_timeout_s: float = 120.0) -> None:
        self._timeout_ms = int(timeout_s * 1000)
        self._reload_ms = int(reload_timeout_s * 1000)
        self._paths: dict[str, str] = {}
        self._results: dict[str, str] = {}
        self._watched: dict[str, int] = {}
        self._woken = False
        self._bus: Any = None
        self._connect()

    # -- connection ------------------------------------------------------------------------------

    def _connect(self) -> None:
        try:
            import gi

            gi.require_version("GLib", "2.0")
            import pydbus  # noqa: F401  (gives connections their attribute of that name)
            from gi.repository import Gio, GLib
        except (ImportError, ValueError) as error:
            raise HostError(
                "cannot talk to systemd: the D-Bus binding is missing",
                detail=str(error),
                hint="apt install python3-gi python3-pydbus, in an environment with --system-site-packages",
                exit_code=ExitCode.NO_MANAGER,
            ) from error
        self._gio, self._glib = Gio, GLib
        try:
            address = Gio.dbus_address_get_for_bus_sync(Gio.BusType.SYSTEM, None)
            self._bus = self._open(address)
        except GLib.Error as error:
            raise HostError(
                "no system bus",
                detail=error.message,
                hint="pd-units needs a host booted by systemd, with dbus running",
                exit_code=ExitCode.NO_MANAGER,
            ) from error
        try:
            self._subscribe()
        except HostError:
            self.close()
            raise

    def _open(self, address: str) -> Any:
        """A connection of our own: the shared one ends the process when the bus goes away.

        As `pydbus.connect`, whose handshake would wait for ever for a bus that hangs.
        """
        gio = self._gio
        flags = gio.DBusConnectionFlags
        given_up = gio.Cancellable()
        timer = threading.Timer(self._timeout_ms / 1000, given_up.cancel)
        timer.daemon = True
        timer.start()
        try:
            wanted = flags.AUTHENTICATION_CLIENT | flags.MESSAGE_BUS_CONNECTION
            return gio.DBusConnection.new_for_address_sync(address, wanted, None, given_up).pydbus
        finally:
            timer.cancel()

    def close(self) -> None:
        """Give the connection up; the manager need not tell us of changes any more."""
        with contextlib.suppress(self._glib.Error):
            self._bus.con.close_sync(None)

    def _subscribe(self) -> None:
        self._bus.con.signal_subscribe(
            _DEST, _MANAGER, "JobRemoved", _ROOT, None, self._gio.DBusSignalFlags.NONE, self._job_removed
        )
        self._call(_ROOT, _MANAGER, "Subscribe")
        for name in tuple(self._watched):
            self._watched.pop(name)
            self.watch([name])

    def _job_removed(self, *signal: Any) -> None:
        _, path, _, result = signal[5]
        self._results[path] = result
        self._woken = True

    def _call(
        self, path: str, interface: str, method: str, args: Any = None, *, timeout_ms: int | None = None
    ) -> Any:
        """Call a method; the unpacked reply (a tuple)."""
        try:
            reply = self._bus.con.call_sync(
                _DEST,
                path,
                interface,
                method,
                args,
                None,
                self._gio.DBusCallFlags.NONE,
                timeout_ms or self._timeout_ms,
                None,
            )
        except self._glib.Error as error:
            raise self._host_error(method, error) from error
        return reply.unpack()

    def _host_error(self, method: str, error: Any) -> HostError:
        name = self._gio.DBusError.get_remote_error(error) or ""
        message = re.sub(r"^GDBus\.Error:[\w.]+: ", "", error.message)
        if name in _DENIED:
            return HostError(
                f"not authorised to call systemd's {method}",
                detail=message,
                hint="run it as root",
                exit_code=ExitCode.NOT_AUTHORISED,
            )
        if not name or name in _NO_ANSWER:
            return HostError(
                f"systemd does not answer ({method})",
                detail=message,
                hint="pd-units needs a host booted by systemd, with dbus running",
                exit_code=ExitCode.NO_MANAGER,
            )
        failure = HostError(f"systemd refused {method}", detail=f"{name}: {message}")
        failure.__cause__ = error
        return failure

    # -- ports.Manager ---------------------------------------------------------------------------

    def version(self) -> int:
        (text,) = self._call(_ROOT, _PROPERTIES, "Get", self._glib.Variant("(ss)", (_MANAGER, "Version")))
        match = re.search(r"\d+", str(text))
        return int(match.group()) if match else 0

    def unit(self, name: str) -> UnitStatus:
        every = self._glib.Variant("(s)", ("",))
        (p,) = self._call(self._path(name), _PROPERTIES, "GetAll", every)
        job_id, job_path = p.get("Job", (0, "/"))
        return UnitStatus(
            unit=name,
            load_state=p["LoadState"],
            active_state=ActiveState(p["ActiveState"]),
            sub_state=p["SubState"],
            job_id=job_id,
            job_type=self._job_type(job_path) if job_id else "",
            unit_file_state=p.get("UnitFileState", ""),
            fragment_path=p.get("FragmentPath", ""),
            drop_in_paths=tuple(p.get("DropInPaths", ())),
            need_daemon_reload=p.get("NeedDaemonReload", False),
            invocation_id=bytes(p.get("InvocationID", ())).hex(),
            result=p.get("Result", ""),
            main_pid=p.get("MainPID", 0),
            exec_main_pid=p.get("ExecMainPID", 0),
            exec_main_code=p.get("ExecMainCode", 0),
            exec_main_status=p.get("ExecMainStatus", 0),
            exec_main_start_mono_us=p.get("ExecMainStartTimestampMonotonic", 0),
            n_restarts=p.get("NRestarts", 0),
            start_limit_burst=p.get("StartLimitBurst", 0),
            start_limit_interval_us=p.get("StartLimitIntervalUSec", 0),
            state_change_us=p.get("StateChangeTimestamp", 0),
            inactive_exit_mono_us=p.get("InactiveExitTimestampMonotonic", 0),
            active_enter_mono_us=p.get("ActiveEnterTimestampMonotonic", 0),
            active_enter_us=p.get("ActiveEnterTimestamp", 0),
            control_group=p.get("ControlGroup", ""),
            status_text=p.get("StatusText", ""),
            log_namespace=p.get("LogNamespace", ""),
        )

    def _path(self, name: str) -> str:
        # LoadUnit, not GetUnit: it answers for units that are not loaded. Not cached over a reload's end:
        # the path is a function of the name, but an unloaded unit must be loaded again.
        (path,) = self._call(_ROOT, _MANAGER, "LoadUnit", self._glib.Variant("(s)", (name,)))
        return str(path)

    def _job_type(self, path: str) -> str:
        args = self._glib.Variant("(ss)", ("org.freedesktop.systemd1.Job", "JobType"))
        try:
            (kind,) = self._call(path, _PROPERTIES, "Get", args)
        except HostError:
            return ""  # the job ended between the two calls
        return str(kind)

    def start(self, name: str) -> str:
        return self._job("StartUnit", name)

    def stop(self, name: str) -> str:
        return self._job("StopUnit", name)

    def restart(self, name: str) -> str:
        return self._job("RestartUnit", name)

    def _job(self, method: str, name: str) -> str:
        (path,) = self._call(_ROOT, _MANAGER, method, self._glib.Variant("(ss)", (name, "replace")))
        return str(path)

    def job_result(self, job: str) -> str | None:
        return self._results.get(job)

    def reset_failed(self, name: str) -> None:
        try:
            self._call(_ROOT, _MANAGER, "ResetFailedUnit", self._glib.Variant("(s)", (name,)))
        except HostError as error:
            if "NoSuchUnit" not in error.detail:
                raise

    def reload(self) -> None:
        self._call(_ROOT, _MANAGER, "Reload", timeout_ms=self._reload_ms)

    def enable(self, names: Sequence[str]) -> bool:
        args = self._glib.Variant("(asbb)", (list(names), False, False))
        _, changes = self._call(_ROOT, _MANAGER, "EnableUnitFiles", args)
        return bool(changes)

    def disable(self, names: Sequence[str]) -> bool:
        args = self._glib.Variant("(asb)", (list(names), False))
        (changes,) = self._call(_ROOT, _MANAGER, "DisableUnitFiles", args)
        return bool(changes)

    def unit_file_state(self, name: str) -> str:
        try:
            (state,) = self._call(_ROOT, _MANAGER, "GetUnitFileState", self._glib.Variant("(s)", (name,)))
        except HostError as error:
            if error.exit_code is ExitCode.WRITE_FAILED:  # systemd's own answer: no such file
                return ""
            raise
        return str(state)

    def watch(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._watched:
                self._watched[name] = self._bus.con.signal_subscribe(
                    _DEST,
                    _PROPERTIES,
                    "PropertiesChanged",
                    self._path(name),
                    None,
                    self._gio.DBusSignalFlags.NONE,
                    self._unit_changed,
                )

    def _unit_changed(self, *_signal: Any) -> None:
        self._woken = True

    def pump(self, timeout_s: float) -> None:
        if self._bus.con.is_closed():
            self._connect()
        self._woken = False
        context = self._glib.MainContext.default()
        expired: list[bool] = []

        def expire() -> bool:
            expired.append(True)
            return False  # once

        timer = self._glib.timeout_add(max(1, int(timeout_s * 1000)), expire)
        try:
            with DeferredInterrupt() as interrupt:
                while not (self._woken or expired or interrupt.requested):
                    context.iteration(True)
        finally:
            if not expired:
                self._glib.source_remove(timer)
