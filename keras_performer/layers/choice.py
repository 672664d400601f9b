"""The attention inside of a layer or model, and the options that reach it."""

import copy
import inspect
import typing
from collections.abc import Sequence

import keras
import numpy as np

from keras_performer.layers import arguments, call_inputs
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.config import as_layer, config_of
from keras_performer.layers.exact import ExactAttention
from keras_performer.layers.mixing import MixingLayer
from keras_performer.layers.performer import PerformerAttention

# What an attention is made from, of one layer or of each block of a model.
OneChoice: typing.TypeAlias = str | dict | AttentionLayer
BlockChoice: typing.TypeAlias = OneChoice | MixingLayer
Choice: typing.TypeAlias = BlockChoice | Sequence[BlockChoice]

# The classes that have a name, with options of their own beside it.
NAMED: dict[str, type[AttentionLayer]] = {
    "performer": PerformerAttention,
    "exact": ExactAttention,
}

# Arguments of an attention that follow from what is around it: they are no options.
DECIDED = frozenset(
    {
        "num_heads",
        "key_dim",
        "dropout",
        "output_shape",
        "activity_regularizer",
        "seed",
        "causal",
    }
)

# -- Options: the arguments of a class of attention, but for those.


def options_of(kind, decided=DECIDED):
    """Options of a class of attention: its `inspect.Parameter` that are not decided."""
    return {
        name: parameter.replace(kind=parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name not in decided
    }


def takes_options(cls):
    """Decorator of a class whose `**kwargs` are options of its attention, and Keras'.

    Its signature gets the options of `PerformerAttention`, with other defaults where
    the class has them as `option_defaults`. Those that it has itself, as
    `kernel_initializer` of an encoder, and positions where it has `position_embedding`
    are decided by it.
    """
    *own, kwargs = inspect.signature(cls).parameters.values()
    names = {parameter.name for parameter in own}
    if "position_embedding" in names:
        names.add("rotary")
    cls.decided = DECIDED | names
    options = options_of(PerformerAttention, cls.decided)
    for name, default in getattr(cls, "option_defaults", {}).items():
        options[name] = options[name].replace(default=default)
    arguments.show_signature(cls, [*own, *options.values(), kwargs])
    return cls


def check_options(owner, options, kinds):
    """Raises a `ValueError` for options of `owner` that none of the kinds has."""
    decided = getattr(owner, "decided", DECIDED)
    known = {option for kind in kinds for option in options_of(kind, decided)}
    for option, value in options.items():
        if option in known:
            continue
        if option in decided:
            raise ValueError(
                f"{option} is no option of {owner.__name__}, as what is around an "
                f"attention decides it: leave it out. Received: {option}={value!r}"
            )
        if option in options_of(PerformerAttention, decided):
            named = " and ".join(kind.__name__ for kind in kinds)
            raise ValueError(
                f"{option} is an option of PerformerAttention, which {named} has not: "
                f"leave it out. Received: {option}={value!r}"
            )
        raise arguments.unknown(owner, option, value, known | decided - DECIDED)


def named_kinds(attention):
    """The classes of attention that a choice names, each once."""
    several = attention if isinstance(attention, (list, tuple)) else [attention]
    names = [one for one in several if isinstance(one, str) and one in NAMED]
    return [NAMED[name] for name in dict.fromkeys(names)]


def fitting(options, attention):
    """The options, a dict, that a class of attention has which the choice names."""
    known = {name for kind in named_kinds(attention) for name in options_of(kind)}
    return {name: value for name, value in options.items() if name in known}


def of_older_file(config, option_defaults):
    """The config of a model, with the options that its attention has.

    Configs of before 2026-11-28 have some with any attention, each at its default.
    Configs that lack an option of `option_defaults` are older than its default: it has
    the one of the attention then.
    """
    attention = config.get("attention", "performer")
    of_layer = options_of(PerformerAttention)
    lacking = {x: of_layer[x].default for x in option_defaults if x not in config}
    unused = {
        "feature_map",
        "num_random_features",
        "chunk_size",
        "exact_window",
        "initial_log_gain",
        "qk_norm",
    } - fitting(of_layer, attention).keys()
    used = {x: value for x, value in config.items() if x not in unused}
    return {**used, **fitting(lacking, attention)}


class AttentionChoice:
    """The attention of a layer around it: a name with options, or a layer to be copied.

    Args:
        owner: class of the layer around, one that `takes_options`.
        attention: "performer", "exact", an `AttentionLayer` or the config of one. For a
            model of blocks also "none", a `MixingLayer`, or a list, one for each block.
        options: dict of the keyword arguments that the owner does not name itself.
        num_heads, causal: those of the layer around, which a layer must have.
        num_blocks: int, or `None` for one attention.
    """

    def __init__(self, owner, attention, options, num_heads, causal, num_blocks=None):
        self._is_list = num_blocks is not None and isinstance(attention, (list, tuple))
        several = list(attention) if self._is_list else [attention]
        if self._is_list and len(several) != num_blocks:
            raise ValueError(
                "attention must have one entry for each block if it is a list. "
                f"Received: attention with {len(several)} entries, and "
                f"num_layers={num_blocks}"
            )
        self._several = [_checked(one, num_blocks is not None) for one in several]
        for name, value in {"num_heads": num_heads, "causal": causal}.items():
            for one in self._several:
                own = getattr(one, name, value)  # mixers have no heads
                if own != value:
                    raise ValueError(
                        f"attention must have the {name} of the layer or model around "
                        f"it. Received: {name}={value!r}, and attention with "
                        f"{name}={own!r}"
                    )
        kinds = named_kinds(self._several)
        of_performer = options_of(PerformerAttention, owner.decided)
        names = [x for x in options if x in of_performer]
        if names and not kinds:
            raise ValueError(
                'These are options of attention="performer", and some of "exact" (an '
                f"AttentionLayer has its own): {', '.join(names)}. Leave them out. "
                f"Received: attention={attention!r}"
            )
        check_options(owner, options, kinds)
        self._given = options
        # as the layers have them once they are made; `None` goes with any size
        self._options = {
            name: options.get(name, parameter.default)
            for kind in kinds
            for name, parameter in options_of(kind, owner.decided).items()
        }

    def make(self, index=0, *, seed, name="attention", **common):
        """The attention of a block, not built; `None` for "none".

        `common` has what the layer around decides, arguments of `AttentionLayer`.
        """
        one = self._several[index if self._is_list else 0]
        if one == "none":
            return None
        if isinstance(one, str):
            return self._named(NAMED[one], dict(common, seed=seed, name=name))
        made = {**one.get_config(), "name": name, "dtype": common["dtype"]}
        if isinstance(one, AttentionLayer):  # a mixer draws nothing, and has positions
            made["seed"] = seed
            made["dropout"] = one.dropout or common["dropout"]
            if "rotary" in common:
                made["rotary"] = _agreed_rotary(one, common["rotary"])
        return type(one).from_config(made)

    def config(self, made=True):
        """The entries of a config: `attention` and the options.

        Once layers are made, the config of the layer around says what is frozen.
        """
        several = self._several
        configs = [one if isinstance(one, str) else config_of(one) for one in several]
        for config in configs:
            if made and isinstance(config, dict):
                config["config"].pop("trainable", None)
        options = {name: _serialized(value) for name, value in self._options.items()}
        attention = configs if self._is_list else configs[0]
        return copy.deepcopy({"attention": attention, **options})

    def _named(self, kind, common):
        given = {x: self._given[x] for x in options_of(kind) if x in self._given}
        layer = kind(**common, **given)
        config = layer.get_config()
        for name, value in self._options.items():
            if value is not None and name in config:
                self._options[name] = config[name]
        return layer


def positions_of(position_embedding, attention, position_shape, key_dim):
    """Position embedding of a model, and the argument `rotary` of its attentions.

    `None` becomes "rotary" if all attentions can rotate, else "learned".
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
    # what is no attention is refused when it is to be made
    if attention is not None and not isinstance(attention, str):
        attention = as_layer("attention", attention, (AttentionLayer, MixingLayer))
        if not isinstance(attention, AttentionLayer):
            return False
        if attention.rotary is not None:
            return True
        if not attention.can_rotate:
            return False
        key_dim = attention.key_dim
    can = attention != "none" and key_dim % 2 == 0
    return can and len(position_shape) == 1


def _checked(attention, of_blocks):
    """A name, or an attention as a layer."""
    names = [*NAMED, "none"] if of_blocks else [*NAMED]
    if isinstance(attention, str) and attention in names:
        return attention
    if attention is None or isinstance(attention, (str, list, tuple)):
        wanted = "".join(f'"{name}", ' for name in names)
        wanted += "an AttentionLayer or the config of one"
        if of_blocks:
            wanted += ", a MixingLayer, or a list of these, one for each block"
        arguments.checked("attention", attention, False, wanted)
    kinds = (AttentionLayer, MixingLayer) if of_blocks else AttentionLayer
    return as_layer("attention", attention, kinds)


def _agreed_rotary(attention, rotary):
    """The `rotary` of a copy of an attention, where the model has positions."""
    if attention.rotary not in (None, rotary):
        raise ValueError(
            'position_embedding="rotary" needs an attention with the rotary positions '
            'of the model or with none, and "learned" one with none. Received: '
            f"attention with rotary={attention.rotary!r}, where the model has "
            f"rotary={rotary!r}"
        )
    return call_inputs.checked_rotary(attention, rotary)


def _serialized(value):
    """An option for a config."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if hasattr(value, "get_config"):
        return keras.saving.serialize_keras_object(value)
    return value
