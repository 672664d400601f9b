"""Client of an ASGI application, without a network, that can leave at any time."""

import asyncio
import json


class Exchange:
    """One request and its answer: a `POST` of bytes or JSON; a `GET` without body."""

    def __init__(self, app, body=None, path="/generate"):
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        scope = {
            "type": "http",
            "asgi": {"spec_version": "2.3"},  # uvicorn's
            "method": "GET" if body is None else "POST",
            "path": path,
            "query_string": b"",
            "headers": [],
        }
        self.status, self.headers, self.received = None, {}, b""
        self.chunks = asyncio.Queue()
        self.left = asyncio.Event()
        self.asked = False
        self.task = asyncio.create_task(app(scope, self.receive, self.send))

    async def receive(self):
        if not self.asked:
            self.asked = True
            return {"type": "http.request", "body": self.body}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.received += message["body"]
            self.chunks.put_nowait(message["body"])

    async def leave(self):
        self.left.set()
        await self.task

    async def answer(self):
        """The answer, from JSON."""
        await self.task
        return json.loads(self.received)

    async def events(self):
        """The events of a stream, to its end."""
        await self.task
        assert self.headers[b"content-type"].startswith(b"text/event-stream")
        lines = self.received.decode().split("\n\n")
        assert lines.pop() == ""
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    async def tokens(self):
        """The tokens of a stream that ended because it was long enough."""
        *events, last = await self.events()
        assert last["end"] == "length"
        return [event["token"] for event in events]
