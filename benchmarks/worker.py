"""A process that holds programs of one framework and runs them when told to.

`benchmarks.turns` starts one for each environment and lets them take turns, so that
contenders that cannot share an environment are still measured interleaved. Requests
and answers are lines of JSON on standard input and output.

Standard library only: this file runs in every contender's own environment.
"""

import gc
import importlib
import json
import os
import sys
import time
import traceback

# PyTorch's threads (OpenMP) look for work after a run, for 10 ms at most as measured.
SETTLING_SECONDS = 0.02


def main():
    # what frameworks print goes to standard error; answers keep the real output
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contenders, programs = None, {}
    for line in sys.stdin:
        request, answer = json.loads(line), None
        try:
            if request["do"] == "start":
                pin(request["threads"])  # first: frameworks count the cores
                contenders = importlib.import_module(request["module"])
                answer = contenders.start(request["threads"])
            elif request["do"] == "make":
                programs[request["name"]], answer = make(contenders, request["case"])
            elif request["do"] == "run":
                answer = seconds(programs[request["name"]])
                time.sleep(SETTLING_SECONDS)  # before it is another process's turn
            elif request["do"] == "attend":
                attend(contenders, request["case"])
            elif request["do"] == "drop":
                programs.clear()
                gc.collect()
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            print(json.dumps({"error": message}), file=answers, flush=True)
        else:
            print(json.dumps({"answer": answer}), file=answers, flush=True)


def pin(threads):
    """Leaves this process as many cores as threads."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:threads])


def make(contenders, case):
    """A program after its first call, and what that took in seconds and bytes."""
    trace, run = contenders.program(case)
    took = []
    peak, _ = peak_and_seconds(lambda: took.extend([seconds(trace), seconds(run)]))
    names = "trace_seconds", "first_call_seconds", "peak_bytes"
    return run, dict(zip(names, [*took, peak]))


def attend(contenders, case):
    """Has attention of one head read its float32 inputs `(L, H)`, and writes it."""
    import numpy as np

    with np.load(case["inputs"]) as arrays:
        inputs = [arrays[x].astype("float32") for x in ("query", "key", "value")]
    np.save(case["output"], np.asarray(contenders.attend(case, *inputs)))


def peak_and_seconds(step, before=None):
    """Bytes by which a step raises the peak above what was before, and its seconds.

    Bytes are `None` where the system does not tell.
    """
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # has VmHWM start again
    except OSError:  # only Linux can, where it is allowed
        pass
    before = resident("VmRSS") if before is None else before
    took = seconds(step)
    peak = resident("VmHWM")
    return None if peak is None else peak - before, took


def resident(field, process="self"):
    """Bytes of a process in memory: now (VmRSS), or at most so far (VmHWM)."""
    try:
        with open(f"/proc/{process}/status") as status:
            lines = dict(line.split(":", 1) for line in status)
    except FileNotFoundError:  # only Linux tells
        return None
    return 1024 * int(lines[field].split()[0])


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
