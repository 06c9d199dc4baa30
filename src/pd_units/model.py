"""The deployment file: text in, Deployment out, or every fault of the file at once.

The public face of model_types (data), model_parse (reading) and model_check (cross-field rules).
"""

from __future__ import annotations

from pathlib import Path

from pd_units.errors import DeploymentError, ExitCode
from pd_units.model_check import check_together, lint, together_code
from pd_units.model_parse import parse_deployment
from pd_units.model_types import (
    DEFAULT_BOOTSTRAP_PORT,
    DEFAULT_METRICS_PORT,
    ArgValue,
    Deployment,
    Engine,
    EngineKind,
    Instance,
    Numa,
    Pin,
    Readiness,
    Router,
)

__all__ = [
    "DEFAULT_BOOTSTRAP_PORT",
    "DEFAULT_METRICS_PORT",
    "ArgValue",
    "Deployment",
    "Engine",
    "EngineKind",
    "Instance",
    "Numa",
    "Pin",
    "Readiness",
    "Router",
    "check_together",
    "lint",
    "parse_deployment",
    "read_deployment",
    "together_code",
]


def read_deployment(path: Path) -> Deployment:
    """Deployment in the file at `path`.

    Raises: DeploymentError 10 if the file cannot be read or is not TOML, 11 or 12 as parse_deployment.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise DeploymentError(
            f"cannot read the deployment file {path}: {error.strerror or error}",
            exit_code=ExitCode.UNREADABLE,
        ) from error
    except UnicodeDecodeError as error:
        raise DeploymentError(
            f"{path} is not TOML: not UTF-8 at byte {error.start}", exit_code=ExitCode.UNREADABLE
        ) from error
    return parse_deployment(text, source=str(path))
