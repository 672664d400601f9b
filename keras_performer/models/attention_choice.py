"""Choice of the attention of a model's blocks."""

import copy
import inspect
import typing
from collections.abc import Sequence

from keras_performer import feature_maps
from keras_performer.layers import (
    AttentionLayer,
    ExactAttention,
    MixingLayer,
    PerformerAttention,
    arguments,
)
from keras_performer.layers.config import as_layer, config_of

# What takes the place of attention in a block, with queries and keys, and without.
_KINDS = AttentionLayer, MixingLayer

# What a model makes it from, for all blocks or for each.
_OfBlock: typing.TypeAlias = str | dict | AttentionLayer | MixingLayer
Choice: typing.TypeAlias = _OfBlock | Sequence[_OfBlock]

# The arguments of a model that are those of its `PerformerAttention`s alone.
OPTIONS = (
    "feature_map",
    "num_random_features",
    "chunk_size",
    "exact_below",
    "exact_window",
    "initial_log_gain",
    "qk_norm",
)


def positions_of(position_embedding, attention, position_shape, key_dim):
    """Position embedding of a model, and the `rotary` of its attentions.

    Args:
        position_embedding: "learned", "rotary", or `None` for what the attentions can.
        attention: as in `makers`.
        position_shape: tuple of ints.
        key_dim: int, the size of a head.

    Returns:
        "learned" or "rotary", and the argument of attentions.
    """
    if position_embedding is None:
        rotates = _rotates(attention, position_shape, key_dim)
        position_embedding = "rotary" if rotates else "learned"
    choices = "learned", "rotary"
    arguments.one_of("position_embedding", position_embedding, choices)
    if position_embedding == "learned":
        return position_embedding, None
    return position_embedding, True if len(position_shape) == 1 else position_shape


def _rotates(attention, position_shape, key_dim):
    if isinstance(attention, (list, tuple)):
        # blocks without attention leave it to the others
        of_blocks = [one for one in attention if one != "none"] or ["none"]
        return all(_rotates(one, position_shape, key_dim) for one in of_blocks)
    if isinstance(attention, str):
        can = attention != "none" and key_dim % 2 == 0
        return can and len(position_shape) == 1
    # what is no attention is refused when it is to be made
    return getattr(as_layer("attention", attention, _KINDS), "rotary", None)


def makers(attention, num_layers, common, performer):
    """Makes the attention layer of each block of a model.

    Args:
        attention: "performer", "exact", "none", an `AttentionLayer` or `MixingLayer` to
            be copied, or the config of one; or a list of these, one for each block.
        num_layers: int, the number of blocks.
        common: dict of the arguments that all attentions have: `num_heads`, `key_dim`,
            `dropout`, `causal`, `rotary`, `dtype`.
        performer: dict of the further arguments of "performer".

    Returns:
        List of functions of a seed that return a layer, or `None` for "none".
    """
    is_list = isinstance(attention, (list, tuple))
    if is_list and len(attention) != num_layers:
        raise ValueError(
            "attention must have one entry for each block if it is a list. Received: "
            f"attention with {len(attention)} entries, and num_layers={num_layers}"
        )
    of_blocks = list(attention) if is_list else [attention] * num_layers
    if "performer" not in of_blocks:
        _check_not_given(attention, performer)
    return [_maker(one, common, performer) for one in of_blocks]


class Made:
    """The `attention` that makes the blocks of a model again, whatever is done to it.

    Args:
        attention: as in `makers`.
        blocks: list of the blocks that were made with it.
    """

    def __init__(self, attention, blocks):
        self._config = _config(attention, blocks)

    def config(self):
        """A str, dict or list for the config of the model; a copy."""
        return copy.deepcopy(self._config)


def _config(attention, blocks):
    if isinstance(attention, str):
        return attention
    if isinstance(attention, (list, tuple)):
        return [_config(*pair) for pair in zip(attention, zip(blocks))]
    made = config_of(blocks[0].attention)
    made["config"].pop("trainable", None)  # may change; the model says what it is
    return made


def _maker(attention, common, performer):
    if attention == "performer":
        return lambda seed: PerformerAttention(
            **common, **performer, seed=seed, name="attention"
        )
    if attention == "exact":
        return lambda seed: ExactAttention(**common, seed=seed, name="attention")
    if attention == "none":
        return lambda seed: None
    if attention is None or isinstance(attention, str):
        raise ValueError(
            'attention must be "performer", "exact", "none", an AttentionLayer or the '
            "config of one, a MixingLayer, or a list of these, one for each block. "
            f"Received: attention={attention!r}"
        )
    template = as_layer("attention", attention, _KINDS)
    is_mixer = isinstance(template, MixingLayer)
    for name in ["causal"] if is_mixer else ["num_heads", "causal"]:
        if getattr(template, name) != common[name]:
            raise ValueError(
                f"attention must have the {name} of the model. Received: {name}="
                f"{common[name]!r}, and attention with {name}="
                f"{getattr(template, name)!r}"
            )
    options = {**template.get_config(), "name": "attention", "dtype": common["dtype"]}
    if is_mixer:  # it draws nothing, and knows places by itself
        return lambda seed: type(template).from_config(options)
    if template.rotary != common["rotary"]:
        raise ValueError(
            'position_embedding="rotary" needs an attention with rotary=True, or with '
            'the position_shape of the model, and "learned" one without rotary. '
            f"Received: attention with rotary={template.rotary!r}, where the model has "
            f"rotary={common['rotary']!r}"
        )
    return lambda seed: type(template).from_config({**options, "seed": seed})


def _check_not_given(attention, performer):
    parameters = inspect.signature(PerformerAttention.__init__).parameters
    defaults = {name: [parameters[name].default] for name in performer}
    feature_map = feature_maps.get(*defaults["feature_map"])
    defaults["feature_map"] = [feature_map]
    # older configs have the number that "auto" stands for
    defaults["num_random_features"] += [feature_map.default_num_random_features]
    given = [name for name in performer if performer[name] not in defaults[name]]
    if given:
        raise ValueError(
            'These are options of attention="performer" (an AttentionLayer has its own)'
            f": {', '.join(given)}. Leave them out. Received: attention={attention!r}"
        )
