"""A process that holds programs of one framework, and runs them on request.

`benchmarks.turns` starts a process for each environment and lets them take turns, so
that contenders in different environments are measured in interleaved rounds. Requests
and answers are lines of JSON on standard input and output.

Imports only the standard library, as it runs in the environment of each contender.
"""

import gc
import importlib
import json
import os
import sys
import time
import traceback

# After a run PyTorch's threads (OpenMP) keep cores busy, for at most 10 ms as measured.
SETTLING_SECONDS = 0.02


def main():
    # frameworks print to standard error; only answers go to the real output
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contenders, programs = None, {}
    for line in sys.stdin:
        request, answer = json.loads(line), None
        try:
            if request["do"] == "start":
                pin(request["threads"])  # before frameworks count the cores
                contenders = importlib.import_module(request["module"])
                answer = contenders.start(request["threads"])
            elif request["do"] == "make":
                programs[request["name"]], answer = make(contenders, request["case"])
            elif request["do"] == "run":
                answer = seconds(programs[request["name"]])
                time.sleep(SETTLING_SECONDS)  # before another process's turn
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
    """Limits this process to as many cores as threads."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:threads])


def make(contenders, case):
    """Makes and calls a program; returns it with seconds and bytes of the call.

    The call traces and compiles, too.
    """
    run = contenders.program(case)
    peak, took = peak_and_seconds(run)
    return run, {"first_call_seconds": took, "peak_bytes": peak}


def peak_and_seconds(step, before=None):
    """Runs a step; returns the rise of peak memory in bytes, and seconds.

    The rise is above `before` or the memory at the start.
    """
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets VmHWM
    except OSError:  # not always allowed
        pass
    before = resident("VmRSS") if before is None else before
    took = seconds(step)
    return resident("VmHWM") - before, took


def resident(field):
    """Returns bytes of this process in memory: now (VmRSS), or the peak (VmHWM)."""
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return 1024 * int(lines[field].split()[0])


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
