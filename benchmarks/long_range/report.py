"""One page of tables."""


def write(runs, folder):
    return ""
