"""Formats Markdown tables and the numbers in them."""

import statistics

NOTHING = "–"


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def number(x, digits=2):
    return NOTHING if x is None else f"{x:.{digits}f}"


def ratio(numerator, denominator):
    if numerator is None or denominator is None:
        return None
    return numerator / denominator


def median(row):
    """Returns the median seconds of a row of `turns`; `None` if not measured."""
    return statistics.median(row["times"]) if row.get("times") else None


def by(rows, *names):
    """Groups rows by their entries of these names, in the order of the first rows."""
    groups = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        groups.setdefault(key if len(names) > 1 else key[0], []).append(row)
    return list(groups.items())


def libraries(versions):
    """Formats names and versions from a dict, or from a dict for each environment."""
    found = {}
    for name, of in versions.items():
        found |= dict.fromkeys(of.items() if isinstance(of, dict) else [(name, of)])
    return ", ".join(f"{name} {version}" for name, version in found)
