"""`python -m sglang.launch_server ...`: the entry point that the units call."""

from __future__ import annotations

import sys

from sglang import control, options
from sglang.engine import Engine
from sglang.version import __version__


def main(argv: list[str]) -> None:
    args = options.parse(__version__, argv)
    Engine(args, control.load(args.port), __version__).run()


if __name__ == "__main__":
    main(sys.argv[1:])
