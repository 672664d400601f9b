"""HTTP application: a page, facts about the model, and sessions as event streams."""

import asyncio
import codecs
import contextlib
import json
import logging
import pathlib

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from examples.serving import requests, vocabulary
from examples.serving.batching import Batch, Session
from examples.serving.model import ExportedModel
from examples.serving.requests import Limits, Refused
from examples.serving.sampling import Sampler

PAGE = pathlib.Path(__file__).with_name("page.html")

# Time beyond the limit for clients to read all events, before they are disconnected.
_SECONDS_TO_READ = 5

_log = logging.getLogger("uvicorn.error")


def create_app(folder, limits=None):
    """Returns the ASGI application that serves an exported model."""
    service = Service(folder, limits or Limits())
    return Starlette(
        routes=[
            Route("/", service.page),
            Route("/model", service.describe),
            Route("/status", service.status),
            Route("/generate", service.generate, methods=["POST"]),
        ],
        exception_handlers={Refused: refuse, HTTPException: refuse},
        lifespan=service.lifespan,
    )


class Service:
    """Handlers of requests, one method for each path."""

    def __init__(self, folder, limits):
        self.limits = limits
        self.model = ExportedModel(folder)
        self.vocabulary = vocabulary.read(folder)
        vocabulary.check(self.vocabulary, self.model.vocabulary_size)
        self.batch = Batch(self.model)

    @contextlib.asynccontextmanager
    async def lifespan(self, app):
        """Runs the batch as long as the application runs."""
        work = asyncio.create_task(self.batch.run())
        yield
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    async def page(self, request):
        return FileResponse(PAGE)

    async def describe(self, request):
        """Describes the model and its limits."""
        return JSONResponse(
            {
                **self.vocabulary.model_dump(),
                "vocabulary_size": self.model.vocabulary_size,
                "limits": vars(self.limits),
            }
        )

    async def status(self, request):
        """Returns the number of open sessions, and of steps and tokens so far."""
        batch = self.batch
        numbers = dict(sessions=len(batch), steps=batch.steps, tokens=batch.tokens)
        return JSONResponse(numbers)

    async def generate(self, request):
        """Starts a session and streams it."""
        try:
            asked = requests.parse(await self._body(request))
        except ClientDisconnect:
            return Response()  # nobody reads it
        tokens = requests.prompt_of(
            asked, self.vocabulary, self.model.vocabulary_size, self.limits
        )
        prompt = self.vocabulary.start + tokens
        new_tokens = requests.new_tokens_of(
            asked, len(prompt), self.vocabulary, self.limits
        )
        if len(self.batch) >= self.limits.max_sessions:
            most = self.limits.max_sessions
            raise Refused(503, f"All {most} sessions are taken: ask again later.")
        sampler = Sampler(asked.temperature, asked.top_k, asked.seed)
        session = Session(prompt, sampler, new_tokens, self.limits.seconds)
        self.batch.add(session)
        is_text = self.vocabulary.kind == "text"
        events = text_events(session) if is_text else token_events(session)
        return EventStream(session, events, self.limits.seconds + _SECONDS_TO_READ)

    async def _body(self, request):
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            most = self.limits.max_bytes
            if len(body) > most:
                raise Refused(413, f"A request may have {most} bytes, not more.")
        return bytes(body)


def refuse(request, error):
    """Answers a refused request with a message."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return JSONResponse({"error": str(error)}, error.status, headers)


async def token_events(session):
    """Yields an event for each token of a session, then the reason of its end."""
    async for token in session:
        yield {"token": token}
    yield {"end": session.ending}


async def text_events(session):
    """Yields the events of `token_events`, with the text that each token completes."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(bytes(session.prompt.tolist()))  # may end within a character
    async for token in session:
        yield {"token": token, "text": decoder.decode(bytes([token]))}
    yield {"end": session.ending, "text": decoder.decode(b"", final=True)}


class EventStream(StreamingResponse):
    """Streams server-sent events; ends the session, also if the client leaves.

    Disconnects a client that has not read all events after `seconds`.
    """

    def __init__(self, session, events, seconds):
        async def lines():
            async for event in events:
                yield f"data: {json.dumps(event)}\n\n"

        # tell proxies to pass on each event at once
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines(), headers=headers, media_type="text/event-stream")
        self.session = session
        self.seconds = seconds

    async def __call__(self, scope, receive, send):
        try:
            async with asyncio.timeout(self.seconds):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            _log.warning("A client did not read its events and was disconnected.")
        finally:
            self.session.end("left")
