"""Gradient tapes of others."""

# Private, as what is public does not tell of the tapes of others.
from tensorflow.python.eager import record


def recording():
    """True while any tape records, as it does where a model trains."""
    return record.could_possibly_record()
