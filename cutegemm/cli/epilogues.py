"""`cutegemm epilogues`: every registered epilogue, with its operands, outputs and provider."""

from __future__ import annotations

import argparse
from typing import Any

from rich.markup import escape
from rich.table import Table

from cutegemm.cli.output import Subcommands, console, print_json, subcommand
from cutegemm.fusion import registry
from cutegemm.fusion.registry import Registered


def add(subcommands: Subcommands) -> None:
    parser = subcommand(
        subcommands,
        "epilogues",
        "every registered epilogue: operands, outputs, provider",
        "Lists the epilogues that installed packages register in the entry-point group cutegemm.epilogues.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all)")
    parser.add_argument("--verbose", action="store_true", help="print each one's expression graph too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    for name in args.names:
        registry.lookup(name)  # raises for an unknown or ambiguous name, saying which there are
    every = [entry for entries in registry.registered().values() for entry in entries]
    chosen = [entry for entry in every if not args.names or entry.name in args.names]
    if args.json:
        print_json([_data(entry) for entry in chosen])
        return 0
    out = console()
    if args.verbose:
        for entry in chosen:
            out.print(f"[bold]{escape(entry.epilogue.signature)}[/]  {escape(_summary(entry))}")
            out.print(f"from {entry.distribution} ({entry.source})", markup=False)
            out.print(f"{entry.epilogue.graph}\n", markup=False)
        return 0
    table = Table(box=None, pad_edge=False)
    for title in ("epilogue", "outputs", "from", "what it computes"):
        table.add_column(title, no_wrap=title != "what it computes")
    for entry in chosen:
        cells = entry.epilogue.signature, _outputs(entry), entry.distribution, _summary(entry)
        table.add_row(*map(escape, cells))
    out.print(table)
    return 0


def _summary(entry: Registered) -> str:
    return " ".join((entry.epilogue.__doc__ or "").split())


def _outputs(entry: Registered) -> str:
    return ", ".join(f"{o.name} (N/2)" if o.paired else o.name for o in entry.epilogue.graph.outputs)


def _data(entry: Registered) -> dict[str, Any]:
    graph = entry.epilogue.graph
    return {
        "name": entry.name,
        "summary": _summary(entry),
        "operands": [{"name": o.name, "kind": o.kind, "paired": o.paired} for o in graph.operands],
        "defaults": dict(entry.epilogue.defaults),
        "outputs": [{"name": o.name, "paired": o.paired} for o in graph.outputs],
        "distribution": entry.distribution,
        "source": entry.source,
        "identity": graph.identity,
        "graph": str(graph).splitlines(),
    }
