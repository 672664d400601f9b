"""Tables as text."""


def as_text(names, rows, to_the_right=(), notes=()):
    """Lines of columns, the names of the columns in the first.

    Args:
        names: sequence of str.
        rows: list of sequences of str.
        to_the_right: indices of columns that are aligned there, as numbers are.
        notes: iterable of str, lines below the columns.
    """
    lines = [names, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    columns = (
        "  ".join(
            cell.rjust(width) if index in to_the_right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )
    return "\n".join([*columns, *notes])
