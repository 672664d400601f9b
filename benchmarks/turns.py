"""Programs in several processes that take turns: interleaved rounds."""

import json
import os

from benchmarks.workers import ENVIRONMENTS, Ended, Missing, Worker

# A program that runs for longer than this takes part in fewer rounds.
SLOW_SECONDS, SLOW_ROUNDS = 2, 5
# What a measured case has and its program need not know.
MEASURED = {"times", "reason", "trace_seconds", "first_call_seconds", "peak_bytes"}


class Pool:
    """A worker for each environment, started when first asked, and after it ended.

    Args:
        threads: int, of each worker.
        environments: dict as `workers.ENVIRONMENTS`.
        missing: dict from environments that cannot be had to the reason.
        start: function of an environment, threads and `environments` that returns a
            `Worker`.
    """

    def __init__(self, threads, environments=ENVIRONMENTS, missing=(), start=Worker):
        self.missing, self.versions = dict(missing), {}
        self._start, self._options, self._workers = start, (threads, environments), {}

    def ask(self, environment, **request):
        """The answer of the environment's worker to one request."""
        if environment in self.missing:
            raise Missing(self.missing[environment])
        try:
            if environment not in self._workers:
                worker = self._start(environment, *self._options)
                self._workers[environment] = worker
                self.versions[environment] = worker.versions
            return self._workers[environment].ask(**request)
        except Missing as error:
            self.missing[environment] = str(error)
            raise
        except Ended:
            self._workers.pop(environment).stop()
            raise

    def drop(self):
        """Has every worker forget its programs."""
        for environment in list(self._workers):
            try:
                self.ask(environment, do="drop")
            except Ended:
                pass  # nothing is left to forget

    def stop(self):
        while self._workers:
            self._workers.popitem()[1].stop()


def take_turns(rows, pool, rounds, limit):
    """Makes the programs of all rows, runs each once unmeasured, then once a round.

    The unmeasured run is for TensorFlow, which optimizes a function again when others
    were made since its first call. Slow programs take part in some rounds only; these
    are spread over all, so that medians are still of the same minutes.

    Args:
        rows: list of cases, as `row` makes them. They get what was measured, or the
            reason why it was not; rows that have a reason already are left alone.
        pool: `Pool`.
        rounds: int, how many runs of a program are measured at most; 0 for the first
            call only.
        limit: seconds that a run may take.
    """
    for row in rows:
        if row["reason"] is None:
            answer = ask(row, rows, pool, do="make")
            row.update(answer or {})
            if answer and answer["first_call_seconds"] > limit and rounds:
                took = f"{answer['first_call_seconds']:.0f} s"
                row["reason"] = f"its first call took {took}, the limit is {limit:g} s"
    for row in rows:
        if row["reason"] is None and rounds:
            ask(row, rows, pool, do="run")
    for turn in range(rounds):
        for row in rows:
            if row["reason"] is None and takes_part(row, turn, rounds):
                seconds = ask(row, rows, pool, do="run")
                if seconds is not None:
                    row["times"].append(seconds)
    pool.drop()


def row(case, reason=None):
    return {**case, "times": [], "reason": reason}


def takes_part(row, turn, rounds):
    """Whether the row's program runs in that round: slow ones do in some only."""
    slow = row["times"] and row["times"][0] > SLOW_SECONDS
    if not slow or rounds <= SLOW_ROUNDS:
        return True
    spread = (i * (rounds - 1) // (SLOW_ROUNDS - 1) for i in range(SLOW_ROUNDS))
    return turn in spread


def ask(row, rows, pool, do):
    """The answer of the row's program; `None`, and a reason in the row, if it fails."""
    case = {key: value for key, value in row.items() if key not in MEASURED}
    name = json.dumps(case)
    try:
        return pool.ask(row["environment"], do=do, name=name, case=case)
    except Ended as error:
        row["reason"] = str(error)
        # the next process knows none of the programs that went with this one
        for other in rows:
            made = "first_call_seconds" in other and other["reason"] is None
            if made and other["environment"] == row["environment"]:
                if ask(other, rows, pool, do="make"):
                    ask(other, rows, pool, do="run")
    except (Missing, RuntimeError) as error:
        row["reason"] = str(error)


def save(path, results):
    """Writes JSON such that an interruption leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(results, indent=1))
    os.replace(beside, path)
