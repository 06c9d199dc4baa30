"""Plan + templates -> unit texts. Pure given the template texts; same plan, same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import jinja2

from pd_units import quoting
from pd_units.errors import Fault, TemplateError
from pd_units.plan import Plan, UnitPlan
from pd_units.rendered import RenderedUnit
from pd_units.resources import read_templates


class _Lines(str):
    """Text of several lines that a macro made; every value in it has been through the finalizer."""

    __slots__ = ()


def render_units(plan: Plan, *, templates: Mapping[str, str] | None = None) -> tuple[RenderedUnit, ...]:
    """The services of `plan`, in its order.

    Raises: TemplateError 20 if a template is missing, wrong, uses a name that there is not, or puts a
    line end into a line.
    """
    environment = _shipped() if templates is None else _environment(templates)
    return tuple(RenderedUnit(unit.unit, _render(environment, unit), unit.role) for unit in plan.units)


@cache
def _shipped() -> jinja2.Environment:
    return _environment(read_templates())


def _environment(templates: Mapping[str, str]) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(dict(templates)),
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters = {
        "value": quoting.quote_value,
        "word": quoting.quote_word,
        "arguments": _arguments,
        "mount": quoting.quote_mount,
        "command": _command,
        "values": _values,
        "lines": _Lines,
    }
    return environment


def _render(environment: jinja2.Environment, unit: UnitPlan) -> str:
    name = f"{unit.role}.service.j2"
    try:
        return environment.get_template(name).render(unit=unit)
    except jinja2.TemplateNotFound as error:
        raise TemplateError(f"there is no template {error.name}") from error
    except jinja2.TemplateSyntaxError as error:
        fault = Fault(f"{error.name or name}:{error.lineno}", error.message or "syntax error")
        raise TemplateError(f"the template for {unit.unit} cannot be read", faults=[fault]) from error
    except (jinja2.TemplateError, ValueError, TypeError) as error:
        fault = Fault(f"{name}:{_line_of(error, environment)}", str(error))
        raise TemplateError(f"the template for {unit.unit} cannot be rendered", faults=[fault]) from error


def _line_of(error: BaseException, environment: jinja2.Environment) -> str:
    """Line of the template that raised, from the traceback as jinja2 rewrites it; "?" if it is not there."""
    line, trace = "?", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = str(trace.tb_lineno)
        trace = trace.tb_next
    return line


def _finalize(value: object) -> object:
    """Every expression's value, on its way into the text."""
    if isinstance(value, jinja2.Undefined | _Lines):
        return value
    if value is None or isinstance(value, bool):
        raise ValueError(f"{value} is no text: use it in an if")
    if "\n" in (text := str(value)) or "\r" in text or "\0" in text:
        raise ValueError(f"a newline or NUL in a value: {text[:60]!r}")
    return value


def _values(items: Iterable[str]) -> str:
    """Several plain values on one line: After=a b."""
    return " ".join(map(quoting.quote_value, items))


def _command(argv: Iterable[str]) -> str:
    """An Exec*= command: the program's path, then its arguments."""
    program, *arguments = argv
    return f"{quoting.quote_program(program)} {_arguments(arguments)}"


def _arguments(argv: Iterable[str]) -> str:
    """Arguments of an Exec*= command."""
    return " ".join(map(quoting.quote_argument, argv))
