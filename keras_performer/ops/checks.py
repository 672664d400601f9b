"""Errors for inputs that attention cannot take."""


def check_attention_inputs(query, key, value, key_mask):
    """Raises a `ValueError` unless the shapes are those of one attention."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if len(x.shape) != 4:
            raise ValueError(
                f"{name} must have shape (batch, length, heads, head_size). Received: "
                f"{name} of shape {tuple(x.shape)}"
            )
    if query.shape[3] != key.shape[3]:
        raise ValueError(
            "query and key must have the same head size. Received: query of shape "
            f"{tuple(query.shape)} and key of shape {tuple(key.shape)}"
        )
    if key.shape[2] != value.shape[2] or query.shape[2] % key.shape[2]:
        raise ValueError(
            "key and value must have the same number of heads, and query a multiple "
            f"of it. Received: query of shape {tuple(query.shape)}, key of shape "
            f"{tuple(key.shape)}, value of shape {tuple(value.shape)}"
        )
    if not key.shape[:2].is_compatible_with(value.shape[:2]):
        raise ValueError(
            "key and value must have the same batch size and length. Received: key of "
            f"shape {tuple(key.shape)} and value of shape {tuple(value.shape)}"
        )
    if key_mask is not None and not key.shape[:2].is_compatible_with(key_mask.shape):
        raise ValueError(
            "key_mask must have shape (batch, length of key). Received: key_mask of "
            f"shape {tuple(key_mask.shape)} and key of shape {tuple(key.shape)}"
        )
