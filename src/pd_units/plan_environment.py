"""The environment of each process. Later tables win; a variable is there once."""

from __future__ import annotations

from collections.abc import Iterable

from pd_units.model_types import Deployment, Instance
from pd_units.naming import Role
from pd_units.pinning import Placement

#: cuda_* move GPU memory, sm and tcp are the active-message transports that UCX needs beside them, self
#: serves loopback. Named because UCX on a box without RDMA otherwise probes for InfiniBand.
_UCX_TLS = "cuda_copy,cuda_ipc,sm,tcp,self"
#: What the dynamic loader and the C library read before a program begins (ld.so(8), iconv(1), locale(7)).
#: In a unit's environment they would steer the helpers too, which run as root.
LOADER_VARIABLES = (
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "LD_DEBUG",
    "LD_DEBUG_OUTPUT",
    "LD_PROFILE",
    "LD_PROFILE_OUTPUT",
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "LOCPATH",
)


def is_loader_variable(name: str) -> bool:
    """Whether it acts before a program's first line."""
    return name in LOADER_VARIABLES


def split_environment(
    variables: Iterable[tuple[str, str]],
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The variables for the unit, and the words that give the main process alone the loader's: env(1)."""
    found = tuple(variables)
    words = tuple(f"{name}={value}" for name, value in found if is_loader_variable(name))
    return (
        tuple(each for each in found if not is_loader_variable(each[0])),
        ("/usr/bin/env", *words) if words else (),
    )


def backend_environment(
    deployment: Deployment, instance: Instance, placement: Placement
) -> tuple[tuple[str, str], ...]:
    """Variables of a prefill, decode or standalone process, in the order they are rendered."""
    engine = deployment.engine
    found = {"PYTHONUNBUFFERED": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if placement.visible is not None:
        found["CUDA_VISIBLE_DEVICES"] = placement.visible
    if instance.role is not Role.STANDALONE and transfer_backend(deployment, instance) == "nixl":
        # expandable segments register with UCX and then silently move over TCP in place of CUDA IPC
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"
        found["UCX_TLS"] = _UCX_TLS
    if placement.away_from_gpus:
        # bound elsewhere on purpose: the engine must not bind itself to its GPUs' nodes instead
        found["SGLANG_AUTO_NUMA_BIND"] = "0"
    if placement.sm120:
        found |= engine.sm120
    found |= engine.environment
    found |= instance.environment
    return tuple(found.items())


def router_environment(deployment: Deployment) -> tuple[tuple[str, str], ...]:
    """Variables of the router's process; the engine's are none of its business."""
    assert deployment.router is not None
    return tuple(({"PYTHONUNBUFFERED": "1"} | dict(deployment.router.environment)).items())


def transfer_backend(deployment: Deployment, instance: Instance) -> str:
    """How KV cache moves from prefill to decode; NIXL where the file does not say."""
    option = "disaggregation-transfer-backend"
    return str(instance.args.get(option, deployment.engine.args.get(option, "nixl")))
