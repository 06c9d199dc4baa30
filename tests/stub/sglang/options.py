"""The command line of the played version: the real names, kinds and choices; argparse refuses the rest."""

from __future__ import annotations

import argparse
from pathlib import Path

SCALARS = {"str": str, "int": int, "float": float}
SUFFIXES = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def size(text: str) -> int:
    """`131072` or `128k`, as the real one reads a context length."""
    factor = SUFFIXES.get(text[-1:].lower())
    return int(float(text[:-1]) * factor) if factor else int(text)


def build_parser(version: str) -> argparse.ArgumentParser:
    """The parser of that sglang version. Raises: FileNotFoundError for a version that is not played."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    table = Path(__file__).with_name("options") / f"{version}.tsv"
    for line in table.read_text().splitlines():
        if line.startswith("#"):
            continue
        names, kind, *rest = line.split("\t")
        words = names.split()
        required = "--model-path" in words
        if kind == "flag":
            parser.add_argument(*words, action="store_true")
        elif kind == "bool":
            parser.add_argument(*words, action=argparse.BooleanOptionalAction)
        else:
            scalar, nargs = kind.rstrip("+*?"), kind[-1] if kind[-1] in "+*?" else None
            kind_of = SCALARS.get(scalar, size)
            choices = [kind_of(choice) for choice in rest[0].split(",")] if rest and rest[0] else None
            parser.add_argument(*words, type=kind_of, nargs=nargs, choices=choices, required=required)
    return parser


def parse(version: str, argv: list[str]) -> argparse.Namespace:
    """The parsed command line with the real defaults; leaves by exit 2 with the usage, as argparse does."""
    args = build_parser(version).parse_args(argv)
    args.host = args.host or "127.0.0.1"
    args.port = args.port or 30000
    values = vars(args)  # 0.5.13 stores under the long names, 0.5.23 under the short ones
    args.tp = values.get("tensor_parallel_size") or values.get("tp_size") or 1
    args.dp = values.get("data_parallel_size") or values.get("dp_size") or 1
    args.mode = (args.disaggregation_mode or "null").replace("null", "")
    args.disaggregation_bootstrap_port = args.disaggregation_bootstrap_port or 8998
    args.level = (args.log_level or "info").lower()
    return args
