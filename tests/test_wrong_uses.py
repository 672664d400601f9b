"""An error says what was wanted, what came, and what to do."""

import re

import pytest

from tests.wrong_uses import of_calls, of_layers, of_models

# Wrong uses by what they concern.
WRONG_USES = {
    **of_layers.WRONG_USES,
    **of_calls.WRONG_USES,
    **of_models.WRONG_USES,
}
ALL = [one for group in WRONG_USES.values() for one in group]


def said_by(error):
    """The message, without what Keras adds to those of a call and its inputs."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    text = re.sub(r"\AException encountered when calling .*\n\n", "", text)
    return text.partition("\n\nArguments received by")[0]


@pytest.mark.parametrize("wrong", ALL, ids=lambda one: one.wanted[:40])
def test_a_wrong_use_is_told_what_was_wanted_what_came_and_what_to_do(wrong):
    with pytest.raises(wrong.error) as caught:
        wrong.use()
    message = said_by(caught.value)
    assert message.startswith(wrong.wanted)
    assert wrong.received in message
    assert wrong.advice in message
    # what came is said apart from what was wanted: by us, or by an operation
    assert "Received" in message or wrong.error is not ValueError


def test_there_are_many_of_each_kind():
    assert len(ALL) >= 30
    assert min(len(group) for group in WRONG_USES.values()) >= 4
