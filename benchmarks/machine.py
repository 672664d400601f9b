"""The machine and the moment of a measurement."""

import datetime
import os
import pathlib
import platform
import shlex
import subprocess
import sys


def describe(threads):
    spec = sys.modules["__main__"].__spec__
    # what runs a package is its module `__main__`
    module = spec.name.removesuffix(".__main__") if spec else sys.argv[0]
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_bytes": memory_bytes(),
        # other programs: PyTorch suffers from them far more than TensorFlow does
        "load_at_start": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": commit(),
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
    }


def commit():
    """Commit of this checkout, "-dirty" if files differ from it; `None` without git."""
    git = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    folder = pathlib.Path(__file__).parent
    try:
        done = subprocess.run(git, cwd=folder, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def name():
    """The processor, its clock where that is known, and its cores, in a few words."""
    clock = fields("/proc/cpuinfo").get("cpu MHz")
    at_clock = f" at {float(clock):,.0f} MHz" if clock else ""
    return f"{processor()}{at_clock}, {os.cpu_count()} cores"


def processor():
    names = fields("/proc/cpuinfo")
    return names.get("model name") or platform.processor() or platform.machine()


def memory_bytes():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_bytes():
    """Memory that programs can have: what is free, and what caches would give back."""
    available = fields("/proc/meminfo").get("MemAvailable")  # in kB
    return 1024 * int(available.split()[0]) if available else memory_bytes()


def fields(path):
    """The lines `name: value` of a file of Linux; none where it does not exist."""
    try:
        with open(path) as lines:
            pairs = [line.split(":", 1) for line in lines if ":" in line]
    except FileNotFoundError:
        return {}
    return {name.strip(): value.strip() for name, value in pairs}
