"""Checks of requests to the service, with the messages of refusals."""

import json

import pydantic

# Most bytes of a request. A token is an id of seven digits with a comma and a space, or
# a character that JSON escapes.
_BYTES_PER_TOKEN, _BYTES_OF_THE_REST = 12, 1000


@pydantic.dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together.

    Args:
        max_prompt_length: tokens of a prompt.
        max_new_tokens: tokens generated for one request.
        seconds: time of a request; it then ends with the tokens it has.
        max_sessions: requests at once; further ones are told to come later.
    """

    max_prompt_length: pydantic.PositiveInt = 4096
    max_new_tokens: pydantic.PositiveInt = 1024
    seconds: float = pydantic.Field(60.0, gt=0)
    max_sessions: pydantic.PositiveInt = 64

    @property
    def max_bytes(self):
        """Largest size of a request's body."""
        return self.max_prompt_length * _BYTES_PER_TOKEN + _BYTES_OF_THE_REST


class Refused(Exception):
    """Refusal of a request, with an HTTP status and a message."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


class Request(pydantic.BaseModel, extra="forbid", strict=True):
    """The body of a request.

    Attributes:
        text: the prompt as a string, for a model of text.
        tokens: the prompt as ids, for any model.
        max_new_tokens: tokens to generate; `None` for the largest number allowed.
        temperature, top_k, seed: arguments of `Sampler`.
    """

    text: str | None = None
    tokens: list[int] | None = None
    max_new_tokens: pydantic.PositiveInt | None = None
    temperature: float = pydantic.Field(1.0, ge=0, le=1000, allow_inf_nan=False)
    top_k: pydantic.PositiveInt | None = None
    seed: pydantic.NonNegativeInt | None = None


def parse(body):
    """Reads a request from a JSON body."""
    try:
        return Request.model_validate_json(body)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
    if first["type"] == "json_invalid":
        raise Refused(400, f"The body must be JSON. {first['msg']}.")
    name = ".".join(map(str, first["loc"])) or "the body"
    sentence = f"{name}: {first['msg']}. Received: {json.dumps(first['input'])[:100]}"
    raise Refused(422, sentence)


def prompt_of(request, vocabulary, vocabulary_size, limits):
    """Returns the prompt of a request as ids, without `vocabulary.start`."""
    if (request.text is None) == (request.tokens is None):
        raise Refused(422, "A request must have a prompt, either text or tokens.")
    if request.text is not None and vocabulary.kind != "text":
        raise Refused(422, "This model knows no text: send the prompt as tokens.")
    text = request.text
    tokens = request.tokens if text is None else list(text.encode())
    if len(tokens) + len(vocabulary.start) == 0:
        raise Refused(422, "The prompt must have at least one token.")
    count, most = len(tokens), limits.max_prompt_length
    if count > most:
        raise Refused(422, f"A prompt may have {most} tokens. Received: {count}")
    wrong = [token for token in tokens if not 0 <= token < vocabulary_size]
    if wrong:
        must_be = f"at least 0 and less than {vocabulary_size}"
        raise Refused(422, f"Tokens must be {must_be}. Received: {wrong[0]}")
    return tokens


def new_tokens_of(request, prompt_length, vocabulary, limits):
    """Returns the number of tokens to sample; `prompt_length` includes `start`."""
    allowed = limits.max_new_tokens
    if vocabulary.max_length is not None:
        allowed = min(allowed, vocabulary.max_length - prompt_length)
    if allowed < 1:
        raise Refused(
            422,
            f"A sequence of this model has {vocabulary.max_length} tokens, and the "
            "prompt, start tokens included, must be shorter. Received: "
            f"{prompt_length}",
        )
    asked = allowed if request.max_new_tokens is None else request.max_new_tokens
    if asked > allowed:
        must_be = f"at most {allowed} for this prompt"
        raise Refused(422, f"max_new_tokens must be {must_be}. Received: {asked}")
    return asked
