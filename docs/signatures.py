"""Keras' attention and ours, argument by argument: the tables of docs/compatibility.md.

python -m docs.signatures

notes the signatures of the Keras that it runs with in docs/signatures.json, and writes
the tables. An older or newer Keras needs no environment of its own:

pip install --no-deps --target OLD "keras==3.12.*"
PYTHONPATH=OLD:. python -m docs.signatures
"""

import inspect
import json
import pathlib
import re

import keras

import keras_performer

PAGE = pathlib.Path(__file__).with_name("compatibility.md")
RECORD = pathlib.Path(__file__).with_suffix(".json")
HEADINGS = {
    "MultiHeadAttention.__init__": "The constructor",
    "MultiHeadAttention.call": "The call",
    "MultiHeadAttention.build": "`build`",
    "MultiHeadAttention.compute_output_shape": "`compute_output_shape`",
    "MultiHeadAttention.compute_mask": "`compute_mask`",
    "GroupQueryAttention.__init__": "The constructor of `GroupQueryAttention`",
    "GroupQueryAttention.call": "The call of `GroupQueryAttention`",
}
# Where the name here is another.
RENAMED = {"head_dim": "key_dim", "num_query_heads": "num_heads"}
# What the signatures do not say.
NOTES = {
    "dropout": "falls on attended values: there is no matrix to drop from",
    "attention_mask": "which keys are seen; refused where it differs by query",
    "return_attention_scores": "the weights that the features imply",
    "value": "left out: self-attention",
    "value_shape": "left out: self-attention",
}
# What is not here, and refused.
REFUSED = {
    "attention_axes": "refused, but for axis 1: reshape",
    "sliding_window": "refused unless `None`: `LocalAttention` has it",
    "flash_attention": "refused unless `None` or `False`",
    "use_gate": "refused unless `False`",
}
MARK = "<!-- {} -->"


def parameters(function):
    """Name and default, as Python says it, of each argument; "" without a default."""
    return [
        [p.name, "" if p.default is p.empty else repr(p.default)]
        for p in inspect.signature(function).parameters.values()
        if p.name != "self" and p.kind is not p.VAR_KEYWORD
    ]


def with_places(function):
    """The names of arguments that have a place, in their order."""
    parameters = inspect.signature(function).parameters.values()
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [p.name for p in parameters if p.kind is kind and p.name != "self"]


def of_keras():
    """The signatures of the Keras that runs, by names such as those of `HEADINGS`."""
    return {name: parameters(_find(keras.layers, name)) for name in HEADINGS}


def version():
    """That of Keras as far as signatures may change, such as "3.15"."""
    return ".".join(keras.__version__.split(".")[:2])


def recorded():
    """Signatures by versions of Keras, the oldest first."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return {v: record[v] for v in sorted(record, key=lambda v: _numbers(v))}


def table(name, record):
    """The rows of one table, as Markdown.

    Args:
        name: str, one of `HEADINGS`.
        record: what `recorded` returned.
    """
    method = name.split(".")[1]
    ours = keras_performer.PerformerAttention
    function = ours if method == "__init__" else getattr(ours, method)
    ours, named = parameters(function), with_places(function)
    groups = _groups({version: of[name] for version, of in record.items()})
    heads = [f"place in Keras {words}" for words in groups]
    rows = [["argument", "default", *heads, "place here", "here"]]
    newest = list(groups.values())[-1]
    for argument, default in newest:
        places = [_place(argument, signature) for signature in groups.values()]
        at_home = RENAMED.get(argument, argument)
        rows.append(
            [
                f"`{argument}`",
                _code(default),
                *places,
                *_here(at_home, default, ours, named),
            ]
        )
        if at_home != argument:
            rows[-1][-1] = f"`{at_home}`"
    known = {RENAMED.get(argument, argument) for argument, _ in newest}
    if name.startswith("MultiHead"):
        for argument, default in ours:
            if argument not in known:
                places = ["" for _ in groups]
                place = _place_here(argument, named)
                rows.append(
                    [f"`{argument}`", _code(default), *places, place, "not in Keras"]
                )
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines)


def page(text, record):
    """The text of the page with its tables."""
    for name in HEADINGS:
        mark = re.escape(MARK.format(name))
        new = f"{MARK.format(name)}\n\n{table(name, record)}\n\n"
        text, count = re.subn(rf"{mark}\n+(?:\|.*\n)*\n*", lambda _, new=new: new, text)
        if count != 1:
            raise ValueError(f"{PAGE.name} has no place {MARK.format(name)}.")
    return text


def _find(module, name):
    kind, method = name.split(".")
    return getattr(getattr(module, kind), method)


def _numbers(version):
    return tuple(map(int, version.split(".")))


def _groups(signatures):
    """Signatures by the versions that have them, in words such as "3.10 to 3.13"."""
    groups = []
    for version, signature in signatures.items():
        if groups and groups[-1][1] == signature:
            groups[-1][0].append(version)
        else:
            groups.append(([version], signature))
    return {
        " to ".join(dict.fromkeys([versions[0], versions[-1]])): signature
        for versions, signature in groups
    }


def _place(argument, signature):
    names = [name for name, _ in signature]
    return str(names.index(argument) + 1) if argument in names else "none"


def _code(default):
    return f"`{default}`" if default else "none"


def _place_here(argument, named):
    return str(named.index(argument) + 1) if argument in named else "by name"


def _here(argument, default, ours, named):
    """The place and what is to be said of an argument of Keras."""
    if argument not in dict(ours):
        return ["none", REFUSED.get(argument, "missing")]
    note = NOTES.get(argument, "")
    is_other = dict(ours)[argument] != default and not note
    note = note or (
        f"default {_code(dict(ours)[argument])}" if is_other else "the same"
    )
    return [_place_here(argument, named), note]


def main():
    record = {**recorded(), version(): of_keras()}
    lines = (f"{json.dumps(v)}: {json.dumps(of)}" for v, of in record.items())
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")  # a version, a line
    PAGE.write_text(page(PAGE.read_text(), recorded()))


if __name__ == "__main__":
    main()
