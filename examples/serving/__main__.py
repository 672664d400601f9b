"""Serves an exported model: `python -m examples.serving FOLDER --port 8000`."""

import uvicorn

from examples.serving.app import create_app
from examples.serving.requests import Limits

# Time for sessions to end after the server is told to stop.
_SECONDS_TO_STOP = 5


def main(
    folder: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits = Limits(),  # noqa: B008
):
    """Serves the model until it is stopped.

    Args:
        folder: a SavedModel with the signatures prefill and decode.
        host: address to listen at; 0.0.0.0 for all addresses of the machine.
        port: port to listen at.
        limits: limits of one request, and of all requests together.
    """
    app = create_app(folder, limits)
    uvicorn.run(app, host=host, port=port, timeout_graceful_shutdown=_SECONDS_TO_STOP)


if __name__ == "__main__":
    import jsonargparse

    jsonargparse.CLI(main)
