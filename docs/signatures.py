"""Compares arguments of Keras' attention and ours: tables of docs/compatibility.md.

python -m docs.signatures

records the signatures of the installed Keras in docs/signatures.json, and writes the
tables. An older or newer Keras needs no separate environment:

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
RECORDED = (
    "MultiHeadAttention.__init__",
    "MultiHeadAttention.call",
    "MultiHeadAttention.build",
    "MultiHeadAttention.compute_output_shape",
    "MultiHeadAttention.compute_mask",
    "GroupQueryAttention.__init__",
    "GroupQueryAttention.call",
)
# The tables on the page.
TABLES = (RECORDED[0], RECORDED[1], RECORDED[5])
# Our names for arguments that Keras calls otherwise.
RENAMED = {"head_dim": "key_dim", "num_query_heads": "num_heads"}
# Notes on arguments, which signatures do not contain.
NOTES = {
    "dropout": "applies to the attention output, before the output projection",
    "attention_mask": "must be the same for all queries and all heads",
    "return_attention_scores": "returns the estimated weights",
    "value": "optional; without it, self-attention",
    "value_shape": "optional; without it, self-attention",
}
# Arguments of Keras that are an error here.
REFUSED = {
    "attention_axes": "an error, unless it is axis 1: reshape the inputs",
    "sliding_window": "an error, unless `None`: use `LocalAttention`",
    "flash_attention": "an error, unless `None` or `False`",
    "use_gate": "an error, unless `False`",
}
MARK = "<!-- {} -->"


def parameters(function):
    """Returns the name and `repr` of the default of each argument; "" for none."""
    return [
        [p.name, "" if p.default is p.empty else repr(p.default)]
        for p in inspect.signature(function).parameters.values()
        if p.name != "self" and p.kind is not p.VAR_KEYWORD
    ]


def with_places(function):
    """Returns the names of positional arguments in their order."""
    parameters = inspect.signature(function).parameters.values()
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [p.name for p in parameters if p.kind is kind and p.name != "self"]


def of_keras():
    """Returns the signatures of the installed Keras by the names of `RECORDED`."""
    return {name: parameters(_find(keras.layers, name)) for name in RECORDED}


def version():
    """Returns the version of Keras without its patch number, such as "3.15"."""
    return ".".join(keras.__version__.split(".")[:2])


def recorded():
    """Returns the recorded signatures by version of Keras, the oldest first."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return {v: record[v] for v in sorted(record, key=lambda v: _numbers(v))}


def table(name, record):
    """Returns one table as Markdown.

    Args:
        name: str, one of `RECORDED`.
        record: the signatures that `recorded` returned.
    """
    method = name.split(".")[1]
    ours = keras_performer.PerformerAttention
    function = ours if method == "__init__" else getattr(ours, method)
    ours, named = parameters(function), with_places(function)
    signatures = {version: dict(of[name]) for version, of in record.items()}
    oldest, *_, newest = signatures
    rows = [["argument", "default in Keras", "in Keras since", "position", "here"]]
    for argument, default in signatures[newest].items():
        at_home = RENAMED.get(argument, argument)
        since = next(version for version, of in signatures.items() if argument in of)
        since = "" if since == oldest else since
        here = _here(at_home, default, ours, named)
        if at_home != argument:
            here[-1] = f"`{at_home}`"
        rows.append([f"`{argument}`", _code(default), since, *here])
    known = {RENAMED.get(argument, argument) for argument in signatures[newest]}
    if name.startswith("MultiHead"):
        for argument, default in ours:
            if argument not in known:
                place = _place_here(argument, named)
                note = f"not in Keras; default {_code(default)}"
                rows.append([f"`{argument}`", "", "", place, note])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines)


def page(text, record):
    """Returns the text of the page with new tables."""
    for name in TABLES:
        mark = re.escape(MARK.format(name))
        new = f"{MARK.format(name)}\n\n{table(name, record)}\n\n"
        text, count = re.subn(rf"{mark}\n+(?:\|.*\n)*\n*", lambda _, new=new: new, text)
        if count != 1:
            raise ValueError(f"{PAGE.name} lacks {MARK.format(name)}.")
    return text.rstrip() + "\n"


def _find(module, name):
    kind, method = name.split(".")
    return getattr(getattr(module, kind), method)


def _numbers(version):
    return tuple(map(int, version.split(".")))


def _code(default):
    return f"`{default}`" if default else "required"


def _place_here(argument, named):
    return str(named.index(argument) + 1) if argument in named else "by name"


def _here(argument, default, ours, named):
    """The position and the note of an argument of Keras."""
    if argument not in dict(ours):
        return ["", REFUSED.get(argument, "missing")]
    note = NOTES.get(argument, "")
    is_other = dict(ours)[argument] != default and not note
    note = note or (
        f"default {_code(dict(ours)[argument])}" if is_other else "the same"
    )
    return [_place_here(argument, named), note]


def main():
    record = {**recorded(), version(): of_keras()}
    lines = (f"{json.dumps(v)}: {json.dumps(of)}" for v, of in record.items())
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")  # one line for each version
    PAGE.write_text(page(PAGE.read_text(), recorded()))


if __name__ == "__main__":
    main()
