"""Which attention the blocks of a model have."""

from keras_performer import feature_maps
from keras_performer.layers import AttentionLayer, ExactAttention, PerformerAttention
from keras_performer.layers.layer_config import as_layer

# What only attention="performer" has, with the defaults of `PerformerLM`.
_PERFORMER_DEFAULTS = {
    "feature_map": feature_maps.get("softmax"),
    "num_random_features": 256,
    "chunk_size": None,
    "exact_below": None,
}


def attention_maker(attention, common, performer):
    """How a model makes the attention layers of its blocks.

    Args:
        attention: "performer", "exact", "none", an `AttentionLayer` to be copied, or
            the config of one.
        common: dict of the arguments that all attentions have: `num_heads`, `key_dim`,
            `dropout`, `causal`, `dtype`.
        performer: dict of the further arguments of "performer".

    Returns:
        Function of a seed that returns a layer, or `None` for "none".
    """
    if attention == "performer":
        return lambda seed: PerformerAttention(
            **common, **performer, seed=seed, name="attention"
        )
    _check_not_given(attention, performer)
    if attention == "exact":
        return lambda seed: ExactAttention(**common, seed=seed, name="attention")
    if attention == "none":
        return lambda seed: None
    if attention is None or isinstance(attention, str):
        raise ValueError(
            'attention must be "performer", "exact", "none", an AttentionLayer or the '
            f"config of one. Received: attention={attention!r}"
        )
    template = as_layer("attention", attention, AttentionLayer)
    for name in ("num_heads", "causal"):
        if getattr(template, name) != common[name]:
            raise ValueError(
                f"attention must have the {name} of the model. Received: {name}="
                f"{common[name]!r}, and attention with {name}="
                f"{getattr(template, name)!r}"
            )
    config = {**template.get_config(), "name": "attention", "dtype": common["dtype"]}
    return lambda seed: type(template).from_config({**config, "seed": seed})


def _check_not_given(attention, performer):
    given = [name for name in performer if performer[name] != _PERFORMER_DEFAULTS[name]]
    if given:
        raise ValueError(
            'These are options of attention="performer" (an AttentionLayer has its own)'
            f": {', '.join(given)}. Leave them out. Received: attention={attention!r}"
        )
