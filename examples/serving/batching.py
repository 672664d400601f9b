"""Runs one model for many sessions: each step samples a token for all of them."""

import asyncio
import logging

import numpy as np

from examples.serving import model

_log = logging.getLogger("uvicorn.error")

# Most prompt tokens in one call of prefill: other sessions wait, and it takes memory.
_PROMPT_TOKENS = 8192


class Session:
    """A growing sequence, and the queue of its tokens for the client.

    Ends after `max_new_tokens` or `seconds`. The prompt has at least one id.
    """

    def __init__(self, prompt, sampler, max_new_tokens, seconds):
        self.prompt = np.array(prompt)
        self.sampler = sampler
        self.last = None
        self.ending = None  # reason of the end: "length", "time", "left" or "error"
        self.deadline = None  # timer that ends the session, set by `Batch.add`
        self.seconds = seconds
        self._remaining = max_new_tokens
        self._queue = asyncio.Queue()

    async def __aiter__(self):
        """Yields tokens as they are sampled."""
        while (token := await self._queue.get()) is not None:
            yield token

    def end(self, ending):
        """Ends the session unless it has ended; the next step frees its row."""
        if self.ending is None:
            self.ending = ending
            if self.deadline is not None:
                self.deadline.cancel()
            self._queue.put_nowait(None)

    def add(self, token):
        """Passes a token to the client; `None` ends the session with an error."""
        if token is None:
            self.end("error")
        if self.ending is not None:
            return
        self.last = token
        self._remaining -= 1
        self._queue.put_nowait(token)
        if self._remaining == 0:
            self.end("length")


class Batch:
    """Sessions of a model. Each running session has one row of the state.

    All bookkeeping happens on the event loop, so it needs no locks. Only the model runs
    in a thread, on arguments that nothing else changes.
    """

    def __init__(self, exported):
        self.model = exported  # `ExportedModel`
        self.steps = 0  # calls of `decode`
        self.tokens = 0  # sampled in all sessions
        self._waiting, self._running, self._state = [], [], None
        self._arrived = asyncio.Event()

    def __len__(self):
        """Number of sessions that have not ended."""
        return len(_going_on(self._waiting + self._running))

    def add(self, session):
        """Adds a session from the next step on, and starts its timer."""
        self._waiting.append(session)
        loop = asyncio.get_running_loop()
        session.deadline = loop.call_later(session.seconds, session.end, "time")
        self._arrived.set()

    async def run(self):
        """Runs steps until it is canceled; then ends all sessions."""
        try:
            while True:
                if not self._waiting and not self._running:
                    self._arrived.clear()
                    await self._arrived.wait()
                try:
                    await self._read_prompts()
                    await self._leave_out_ended()
                    await self._step()
                except Exception:
                    _log.exception("A step failed; its sessions are ended.")
                    self._end_all()
        finally:
            self._end_all()

    async def _read_prompts(self):
        """Reads prompts of the first one's length, and samples their first tokens."""
        self._waiting = _going_on(self._waiting)
        if not self._waiting:
            return
        length = len(self._waiting[0].prompt)
        equal = [s for s in self._waiting if len(s.prompt) == length]
        group = equal[: max(1, _PROMPT_TOKENS // length)]
        tokens, state = await asyncio.to_thread(self._prefill, group)
        if self._running:
            state = await asyncio.to_thread(model.join, [self._state, state])
        self._waiting = [s for s in self._waiting if s not in group]
        self._running, self._state = self._running + group, state
        self._hand_out(group, tokens)

    async def _leave_out_ended(self):
        """Frees the rows of sessions that have ended."""
        rows = [i for i, s in enumerate(self._running) if s.ending is None]
        if len(rows) == len(self._running):
            return
        if rows:
            state = await asyncio.to_thread(model.select, self._state, rows)
        self._state = state if rows else None
        self._running = [self._running[i] for i in rows]

    async def _step(self):
        """Samples a token for each session."""
        if self._running:
            sessions = self._running
            step = asyncio.to_thread(self._decode, sessions, self._state)
            tokens, self._state = await step
            self.steps += 1
            self._hand_out(sessions, tokens)

    def _prefill(self, sessions):
        prompts = np.stack([session.prompt for session in sessions])
        return _drawn(sessions, *self.model.prefill(prompts))

    def _decode(self, sessions, state):
        last = np.array([session.last for session in sessions])
        return _drawn(sessions, *self.model.decode(last, state))

    def _hand_out(self, sessions, tokens):
        for session, token in zip(sessions, tokens):
            session.add(token)
        self.tokens += len(tokens)

    def _end_all(self):
        for session in self._waiting + self._running:
            session.end("error")
        self._waiting, self._running, self._state = [], [], None


def _going_on(sessions):
    return [session for session in sessions if session.ending is None]


def _drawn(sessions, logits, state):
    return [s.sampler.draw(row) for s, row in zip(sessions, logits)], state
