"""Clients of the service: many sessions at once, and when each token arrived."""

import asyncio
import json
import time


async def session(port, tokens, new_tokens, started):
    """One session.

    Args:
        port: int, where the service listens on this machine.
        tokens: list of ints, the prompt.
        new_tokens: int.
        started: function that is called when the first token has come.

    Returns:
        `(sent, arrivals)`: seconds of a clock, a float and a list of them.

    Raises:
        RuntimeError: if the service refuses the session, or ends it early.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {"tokens": tokens, "max_new_tokens": new_tokens, "temperature": 0}
    body = json.dumps(body).encode()
    sent = time.perf_counter()
    writer.write(
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    arrivals, others = [], []
    # lines of the header and sizes of chunks lie between those of events
    async for line in reader:
        if not line.startswith(b"data: "):
            others.append(line)
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "token" not in event:
            others.append(line)
            break
        arrivals.append(time.perf_counter())
        if len(arrivals) == 1:
            started()
    writer.close()
    await writer.wait_closed()
    if len(arrivals) != new_tokens:
        said = b" ".join(line.strip() for line in (*others[:1], *others[-2:]))
        raise RuntimeError(
            f"{new_tokens} tokens must come from the service. Received: "
            f"{len(arrivals)} tokens, and {said.decode(errors='replace')[:300]}"
        )
    return sent, arrivals


def drive(port, prompts, new_tokens, when_all_started):
    """All sessions at once, one for each prompt.

    Args:
        port, new_tokens: as in `session`.
        prompts: list of lists of ints.
        when_all_started: function that is called once each session has its first
            token; what it returns is returned.

    Returns:
        List of what `session` returns, and what `when_all_started` returned.
    """
    answer, waiting = None, len(prompts)

    def started():
        nonlocal answer, waiting
        waiting -= 1
        if waiting == 0:
            answer = when_all_started()

    async def all_at_once():
        return await asyncio.gather(
            *(session(port, tokens, new_tokens, started) for tokens in prompts)
        )

    return asyncio.run(all_at_once()), answer
