"""The command line: one module a verb, loaded when it is called, and the one error boundary."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from pd_units import __version__
from pd_units.cli.output import emit_error
from pd_units.cli.streams import replace_streams
from pd_units.errors import ExitCode, PdUnitsError

_OUTPUT_FAULTS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)

VERBS = (
    "init",
    "validate",
    "render",
    "preflight",
    "diff",
    "install",
    "wait-ready",
    "status",
    "timeline",
    "diagnose",
    "restart",
    "history",
    "rollback",
    "uninstall",
    "topology",
)


class VerbGroup(click.Group):
    """Verbs in the order of their use; a module is imported only for the verb that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"pd_units.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            ctx.fail(f"no such verb {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)


@click.group(
    cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="pd-units")
def cli() -> None:
    """Serve an LLM prefill/decode-disaggregated on this box, with systemd alone.

    One TOML file describes a deployment. `install` renders its units, starts them in dependency order and
    waits until they are ready; `wait-ready` and `status` say so later; `uninstall` takes them away again.
    """


def run(args: Sequence[str]) -> int:
    """Run one command line; the exit code of the contract, whatever happens."""
    as_json = "--json" in args
    try:
        result: Any = cli.main(args=list(args), prog_name="pd-units", standalone_mode=False)
        return int(result) if isinstance(result, int) else ExitCode.OK
    except PdUnitsError as error:
        emit_error(as_json, error)
        return error.exit_code
    except click.ClickException as error:
        return _usage(as_json, error)
    except (click.Abort, KeyboardInterrupt):
        emit_error(as_json, PdUnitsError("interrupted", exit_code=ExitCode.INTERRUPTED))
        return ExitCode.INTERRUPTED
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_FAULTS:
            raise
        return _no_output(error)


def _usage(as_json: bool, error: click.ClickException) -> int:
    if as_json:
        emit_error(True, PdUnitsError(error.format_message(), exit_code=ExitCode.USAGE))
    else:
        error.show()
    return ExitCode.USAGE


def _no_output(error: OSError) -> int:
    """What was to be done is done; its answer could not be written."""
    click.echo(f"pd-units: cannot write the answer: {error.strerror}", err=True)
    return ExitCode.WRITE_FAILED


def main() -> None:
    """The console script."""
    replace_streams()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _no_output(error)
    except (AttributeError, ValueError):
        pass  # there is none, or it was closed
    os._exit(code)  # GLib's own thread can crash an interpreter that is being taken down
