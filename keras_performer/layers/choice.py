"""Choice of the attention inside a layer or model, and of its options."""

import copy
import inspect
import typing
from collections.abc import Sequence

from keras_performer.layers import arguments, call_inputs
from keras_performer.layers.attention import AttentionLayer
from keras_performer.layers.config import as_layer, config_of, serialized
from keras_performer.layers.exact import ExactAttention
from keras_performer.layers.mixing import MixingLayer
from keras_performer.layers.performer import (
    PerformerAttention,
    with_number_of_features,
)

# Types of the argument `attention`: of a layer, of one block, of a model of blocks.
OneChoice: typing.TypeAlias = str | dict | AttentionLayer
BlockChoice: typing.TypeAlias = OneChoice | MixingLayer
Choice: typing.TypeAlias = BlockChoice | Sequence[BlockChoice]

# Attention classes with a name; the enclosing layer or model takes their options.
NAMED: dict[str, type[AttentionLayer]] = {
    "performer": PerformerAttention,
    "exact": ExactAttention,
}

# Arguments of an attention that the enclosing layer or model sets: no options.
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

# -- Options: all other arguments of an attention class.


def options_of(kind, decided=DECIDED):
    """Returns the parameters of an attention class that are not decided, by name."""
    return {
        name: parameter.replace(kind=parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name not in decided
    }


def takes_options(cls):
    """Decorator for classes whose `**kwargs` are options of attention and of Keras.

    The signature of the class gets the options of `PerformerAttention`; the class may
    change defaults by `option_defaults`. Two kinds of options are decided by the class
    and left out: its own arguments, such as `kernel_initializer` of an encoder, and
    `rotary` if the class has `position_embedding`.
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
    """Raises a `ValueError` for options of `owner` that no class of `kinds` has."""
    decided = getattr(owner, "decided", DECIDED)
    known = {option for kind in kinds for option in options_of(kind, decided)}
    for option, value in options.items():
        if option in known:
            continue
        if option in decided:
            raise ValueError(
                f"{option} is no option of {owner.__name__}: the layer or model around "
                f"an attention sets it, so leave it out. Received: {option}={value!r}"
            )
        if option in options_of(PerformerAttention, decided):
            named = " and ".join(kind.__name__ for kind in kinds)
            raise ValueError(
                f"{option} is an option of PerformerAttention, but not of {named}: "
                f"leave it out. Received: {option}={value!r}"
            )
        raise arguments.unknown(owner, option, value, known | decided - DECIDED)


def named_kinds(attention):
    """Returns the attention classes that a choice names, each once."""
    several = attention if isinstance(attention, (list, tuple)) else [attention]
    names = [one for one in several if isinstance(one, str) and one in NAMED]
    return [NAMED[name] for name in dict.fromkeys(names)]


def fitting(options, attention):
    """Returns the entries of `options` that an attention named in the choice has."""
    known = {name for kind in named_kinds(attention) for name in options_of(kind)}
    return {name: value for name, value in options.items() if name in known}


def of_older_file(config, option_defaults):
    """Returns the config of a model, changed if an earlier version wrote it.

    Until 2026-11-28, configs had some options even if the attention does not take them:
    these are left out. Options of `option_defaults` that are missing are added, with
    the defaults of the attention class, which models had before `option_defaults`.
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
    used = with_number_of_features(used)
    return {**used, **fitting(lacking, attention)}


class AttentionChoice:
    """The attention of an enclosing layer: a name with options, or a layer to copy.

    Args:
        owner: class of the enclosing layer, decorated with `takes_options`.
        attention: "performer", "exact", an `AttentionLayer` or the config of one. For a
            model of blocks also "none", a `MixingLayer`, or a list, one for each block.
        options: dict of the keyword arguments that the owner does not name itself.
        num_heads, causal: values of the enclosing layer, required of a layer to copy.
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
                        f"attention must have the same {name} as the layer or model "
                        f"around it. Received: {name}={value!r}, and attention with "
                        f"{name}={own!r}"
                    )
        kinds = named_kinds(self._several)
        of_performer = options_of(PerformerAttention, owner.decided)
        names = [x for x in options if x in of_performer]
        if names and not kinds:
            raise ValueError(
                'These options are for attention="performer", and some for "exact" (an '
                f"AttentionLayer has its own): {', '.join(names)}. Leave them out. "
                f"Received: attention={attention!r}"
            )
        check_options(owner, options, kinds)
        self._given = options
        # For `config`. `_named` replaces these values by those of the made layer, but
        # not `None`: it stands for a default that depends on the sizes of a layer.
        self._options = {
            name: options.get(name, parameter.default)
            for kind in kinds
            for name, parameter in options_of(kind, owner.decided).items()
        }

    def positions(self, position_embedding, position_shape, key_dim):
        """Returns the position embedding of a model, and `rotary` of its attentions.

        `None` becomes "rotary" if all attentions can rotate, else "learned".
        """
        if position_embedding is None:
            # blocks without attention count only if all blocks are without
            of_blocks = [one for one in self._several if one != "none"] or ["none"]
            rotates = all(_rotates(one, position_shape, key_dim) for one in of_blocks)
            position_embedding = "rotary" if rotates else "learned"
        choices = "learned", "rotary"
        arguments.one_of("position_embedding", position_embedding, choices)
        if position_embedding == "learned":
            return position_embedding, None
        return position_embedding, True if len(position_shape) == 1 else position_shape

    def make(self, index=0, *, seed, name="attention", **common):
        """Makes the unbuilt attention of a block; returns `None` for "none".

        `common` has the arguments of `AttentionLayer` that the enclosing layer decides.
        """
        one = self._several[index if self._is_list else 0]
        if one == "none":
            return None
        if isinstance(one, str):
            return self._named(NAMED[one], dict(common, seed=seed, name=name))
        made = {**one.get_config(), "name": name, "dtype": common["dtype"]}
        if isinstance(one, AttentionLayer):  # mixers have no seed, dropout or rotary
            made["seed"] = seed
            made["dropout"] = one.dropout or common["dropout"]
            if "rotary" in common:
                made["rotary"] = _agreed_rotary(one, common["rotary"])
        return type(one).from_config(made)

    def config(self, made=True):
        """Returns `attention` and the options, as entries for a config.

        With `made`, the enclosing layer has made its attentions. Its own config then
        records which of them are frozen, so the entry `attention` does not.
        """
        several = self._several
        configs = [one if isinstance(one, str) else config_of(one) for one in several]
        for config in configs:
            if made and isinstance(config, dict):
                config["config"].pop("trainable", None)
        options = {name: serialized(value) for name, value in self._options.items()}
        attention = configs if self._is_list else configs[0]
        return copy.deepcopy({"attention": attention, **options})

    def keep_number_of_features(self):
        """Replaces "auto" in options of a file: its layer was built by older code."""
        self._given = with_number_of_features(self._given)

    def _named(self, kind, common):
        given = {x: self._given[x] for x in options_of(kind) if x in self._given}
        layer = kind(**common, **given)
        config = layer.get_config()
        for name, value in self._options.items():
            if value is not None and name in config:
                self._options[name] = config[name]
        return layer


def _rotates(attention, position_shape, key_dim):
    """Returns True if rotary positions are the default with this attention."""
    if attention == "none" or isinstance(attention, MixingLayer):
        return False
    if isinstance(attention, AttentionLayer):
        if attention.rotary is not None:
            return True
        if not attention.can_rotate:
            return False
        key_dim = attention.key_dim
    return key_dim % 2 == 0 and len(position_shape) == 1


def _checked(attention, of_blocks):
    """Returns a known name as it is, and another attention as a layer."""
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
    """Returns `rotary` for a copy of an attention, checked against the model's."""
    if attention.rotary not in (None, rotary):
        raise ValueError(
            "attention must have rotary=None, or the same rotary as the model: make it "
            "without rotary, and choose position_embedding for the model. Received: "
            f"attention with rotary={attention.rotary!r}, and a model with "
            f"rotary={rotary!r}"
        )
    return call_inputs.checked_rotary(attention, rotary)
