"""Trained models are read as they were trained, and asked as is said."""

import functools
import subprocess
import zipfile

import keras
import numpy as np
import pytest
from scipy.special import erf

from benchmarks.conversion import antiberty, bert, rows, rxnmapper, wheels
from benchmarks.conversion.pretrained import Pretrained, with_token_types

SIZES = dict(vocabulary_size=7, max_length=13, num_layers=2, intermediate_dim=11)
CONFIGS = {
    antiberty: bert.Config(**SIZES, embedding_dim=6, hidden_dim=6, num_heads=2),
    rxnmapper: bert.Config(**SIZES, embedding_dim=5, hidden_dim=6, num_heads=3),
}
MODELS = pytest.mark.parametrize("module", CONFIGS, ids=lambda module: module.PACKAGE)
MASK = 4


def random_tensors(config, names):
    """By PyTorch's names, each of which may stand for several layers."""
    random = np.random.default_rng(0)
    hidden = config.hidden_dim
    shapes = {
        "token_embedding": (config.vocabulary_size, config.embedding_dim),
        "position_embedding": (config.max_length, config.embedding_dim),
        "embedding_to_hidden": (hidden, config.embedding_dim),
        "feed_forward": (config.intermediate_dim, hidden),
        "feed_forward_output": (hidden, config.intermediate_dim),
        "head": (config.embedding_dim, hidden),
        "logits": (config.vocabulary_size, config.embedding_dim),
        "embedding_norm": (config.embedding_dim,),
        "head_norm": (config.embedding_dim,),
        "attention_norm": (hidden,),
        "output_norm": (hidden,),
    }
    tensors = {}
    for ours, theirs in names.items():
        shape = shapes.get(ours.rstrip("_0123456789"), (hidden, hidden))
        tensors[f"{theirs}.weight"] = random.normal(size=shape).astype(np.float32)
        tensors[f"{theirs}.bias"] = random.normal(size=shape[:1]).astype(np.float32)
    return tensors


def tiny(module, **options):
    config, names = CONFIGS[module], module.names(SIZES["num_layers"])
    sequences = [[2, 1, 5, 6, 4, 1, 6, 3], [2, 6, 6, 1, 3]]
    options = {"sequences": sequences, "mask_token": MASK, **options}
    tensors = random_tensors(config, names)
    return Pretrained(module.PACKAGE, config, tensors, names, **options)


def twin(source, tokens, softmax_of=lambda logits: logits):
    """The logits `(T, vocabulary)` of one sequence, in NumPy."""
    config, tensors = source.config, source.tensors

    def dense(name, x):
        theirs = source.names[name]
        return x @ tensors[f"{theirs}.weight"].T + tensors[f"{theirs}.bias"]

    def normalized(name, x):
        theirs = source.names[name]
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.epsilon)
        return x * tensors[f"{theirs}.weight"] + tensors[f"{theirs}.bias"]

    def gelu(x):
        return x * (1 + erf(x / np.sqrt(2))) / 2

    embeddings = [
        tensors[f"{source.names[name]}.weight"].astype(np.float64)
        for name in ("token_embedding", "position_embedding")
    ]
    x = embeddings[0][tokens] + embeddings[1][: len(tokens)]
    x = normalized("embedding_norm", x)
    if "embedding_to_hidden" in source.names:
        x = dense("embedding_to_hidden", x)
    for i in range(config.num_layers):
        heads = []
        q, k, v = (
            np.split(dense(f"{name}_{i}", x), config.num_heads, axis=-1)
            for name in ("query", "key", "value")
        )
        for query, key, value in zip(q, k, v):
            logits = softmax_of(query @ key.T / np.sqrt(query.shape[-1]))
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ value)
        attended = dense(f"attention_output_{i}", np.concatenate(heads, -1))
        x = normalized(f"attention_norm_{i}", x + attended)
        wide = gelu(dense(f"feed_forward_{i}", x))
        narrow = dense(f"feed_forward_output_{i}", wide)
        x = normalized(f"output_norm_{i}", x + narrow)
    return dense("logits", normalized("head_norm", gelu(dense("head", x))))


def check_model(source, model, softmax_of=lambda logits: logits):
    """Each sequence of a padded batch comes out as the twin has it by itself."""
    long, short = source.sequences
    padded = [long, short + [0] * (len(long) - len(short))]
    logits = model(np.array(padded, np.int32)).numpy()
    for row, tokens in zip(logits, source.sequences):
        expected = twin(source, tokens, softmax_of)
        np.testing.assert_allclose(row[: len(tokens)], expected, rtol=0, atol=2e-5)


@MODELS
def test_the_model_is_that_of_its_paper(module):
    source = tiny(module)
    # as far from 1 as the model's own: normalizing by n - 1 or another gelu shows
    assert np.abs(twin(source, source.sequences[0])).max() > 1
    check_model(source, source.model())


@MODELS
def test_layers_that_share_weights_can_differ(module):
    model = tiny(module).model()
    layers = [layer for layer in model.layers if layer.name.startswith("attention_")]
    attentions = [
        layer for layer in layers if isinstance(layer, keras.layers.MultiHeadAttention)
    ]
    assert len(attentions) == len(set(map(id, attentions))) == SIZES["num_layers"]


@pytest.mark.slow
def test_rows_of_other_attention_have_the_trained_weights():
    source = tiny(rxnmapper)
    every = rows.ROWS + rows.FURTHER
    made = {row.name: functools.partial(row.make, source) for row in every}
    check_model(source, made["mean of V"](), np.zeros_like)
    # sequences are shorter than the window, so that all with one are exact
    for name in ("window alone", "window + favor+", "window + taylor"):
        check_model(source, made[name]())

    def taylor(logits):
        return np.log(1 + logits + logits**2 / 2)

    check_model(source, made["taylor"](), taylor)


def test_the_embedding_of_the_first_type_goes_to_the_positions():
    position, of_type = np.arange(6.0).reshape(3, 2), np.array([[10, 20], [5, 5]])
    tensors = {
        "e.position_embeddings.weight": position,
        "e.token_type_embeddings.weight": of_type,
        "other": of_type,
    }
    found = with_token_types(tensors, "e")
    assert found["e.position_embeddings.weight"].tolist() == [
        [10, 21],
        [12, 23],
        [14, 25],
    ]
    assert found["other"] is of_type and position[0, 0] == 0


def test_sizes_are_read_and_what_is_not_built_is_refused():
    saved = {
        "vocab_size": 25,
        "max_position_embeddings": 512,
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    }
    sizes = (256, 8, 4, 1e-12)
    assert bert.config_of(saved) == bert.Config(25, 512, 64, 64, *sizes)
    albert = {**saved, "embedding_size": 16, "num_hidden_groups": 1}
    assert bert.config_of(albert) == bert.Config(25, 512, 16, 64, *sizes)
    with pytest.raises(ValueError, match="hidden_act must be 'gelu'.*'gelu_new'"):
        bert.config_of({**saved, "hidden_act": "gelu_new"})


def test_reactions_are_cut_by_the_tokenizer_of_their_package():
    source = b'import os\nPATTERN = r"(Cl?|N|>>|\\[[^\\]]+])"\nOTHER = 1\n'
    pattern = rxnmapper.constant(source, "PATTERN")
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "C", "Cl", "N", ">>"]
    tokens = {token: index for index, token in enumerate(lines)}
    found = rxnmapper.tokenize("CCl>>N[X]", pattern, tokens)
    assert found == [2, 4, 5, 7, 6, 1, 3]
    with pytest.raises(ValueError, match="must define MISSING"):
        rxnmapper.constant(source, "MISSING")
    text = """rxns = ["CC>>C", 'N.C>>NC'] # "CC>>C" again
        mapped = "[CH3:1]>>[CH3:1]" and "C >> C" """
    assert rxnmapper.reactions(text) == ["CC>>C", "N.C>>NC"]


def test_antibodies_are_those_of_the_examples():
    chain = "ACDEFGHIKL" * 10
    text = f'["{chain}", "ACDEF"] "__{chain}_", "{chain[:-1]}W", "{chain}"'
    found = antiberty.sequences(text)
    assert found == [*antiberty.TRASTUZUMAB, chain, f"{chain[:-1]}W"]
    tokens = {"[CLS]": 2, "[SEP]": 3, "A": 5, "C": 6}
    assert antiberty.tokenize("ACA", tokens) == [2, 5, 6, 5, 3]


def test_a_wheel_is_downloaded_once_and_not_installed(tmp_path, monkeypatch):
    commands = []

    def run(command, check):
        commands.append(command)
        with zipfile.ZipFile(tmp_path / "name-1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr("a/b", "content")

    monkeypatch.setattr(subprocess, "run", run)
    paths = [wheels.download("name", "1.2", tmp_path) for _ in range(2)]
    assert len(commands) == 1 and paths[0] == paths[1]
    assert commands[0][1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "name==1.2", str(tmp_path)} < set(commands[0])
    assert wheels.read(paths[0], "a/b") == [b"content"]
