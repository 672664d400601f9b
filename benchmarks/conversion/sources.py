"""Trained models from two packages, with sequences to test them on.

Wheels are downloaded and read; nothing in them is installed or imported.
"""

import ast
import dataclasses
import json
import re
import subprocess
import sys
import zipfile

import keras

from benchmarks.conversion import bert
from benchmarks.conversion.torch_files import read_state_dict

# In shorter reactions a window sees almost all tokens.
FEWEST_TOKENS = 41
# The variable domains of trastuzumab. The other sequences are examples of the package,
# without the residues that the examples mask.
TRASTUZUMAB = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAY"
    "LQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQP"
    "EDFATYYCQQHYTTPPTFGQGTKVEIK",
)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """Weights, and tokens of sequences.

    `config` is an argument of `bert.make_model`, `tensors` and `names` of `bert.load`.
    The first and last token of a sequence are never masked. `exact_nll` is the mean
    loss of the exact model on its test examples, computed by a separate NumPy program.
    """

    name: str
    config: dict
    tensors: dict
    names: dict
    sequences: list
    mask_token: int
    exact_nll: float | None = None

    def model(self, attention=keras.layers.MultiHeadAttention):
        """Returns the trained model; `attention` is as in `bert.make_model`."""
        model = bert.make_model(self.config, attention)
        bert.load(model, self.tensors, self.names)
        return model


def rxnmapper(folder, version="0.4.3"):
    """RXNMapper: ALBERT of chemical reactions, under the MIT licence.

    Schwaller et al. 2021, Science Advances 7 (15), eabe4166: 12 layers with shared
    weights, 8 heads, head size 32. Downloads the wheel into a folder if it is missing.
    """
    inside = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
    config, weights, vocabulary, source, *texts = read(
        download("rxnmapper", version, folder),
        f"{inside}/config.json",
        f"{inside}/pytorch_model.bin",
        f"{inside}/vocab.txt",
        "rxnmapper/smiles_utils.py",
        "tests/test_mapper.py",
        f"rxnmapper-{version}.dist-info/METADATA",
    )
    config = json.loads(config)
    lines = vocabulary.decode().splitlines()
    tokens = {token: index for index, token in enumerate(lines)}
    # reads a constant of the module without running it
    [pattern] = [
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "SMI_REGEX_PATTERN"
    ]

    found = reactions("".join(text.decode() for text in texts))
    found = [tokenize(re.findall(pattern, x), tokens) for x in found]
    return Pretrained(
        name=f"rxnmapper {version}",
        config=config,
        tensors=with_token_types(read_state_dict(weights), "albert.embeddings"),
        names=names_of_albert(config["num_hidden_layers"]),
        sequences=[tokens for tokens in found if len(tokens) >= FEWEST_TOKENS],
        mask_token=tokens["[MASK]"],
        exact_nll=0.247,
    )


def antiberty(folder, version="0.1.3"):
    """AntiBERTy: BERT of antibodies, under the MIT licence.

    Ruffolo et al. 2021, arXiv 2112.07782: 8 layers, 8 heads, head size 64.
    """
    inside = "antiberty/trained_models"
    config, weights, vocabulary, description = read(
        download("antiberty", version, folder),
        f"{inside}/AntiBERTy_md_smooth/config.json",
        f"{inside}/AntiBERTy_md_smooth/pytorch_model.bin",
        f"{inside}/vocab.txt",
        f"antiberty-{version}.dist-info/METADATA",
    )
    config = json.loads(config)
    tokens = {token: index for index, token in enumerate(vocabulary.decode().split())}
    return Pretrained(
        name=f"antiberty {version}",
        config=config,
        tensors=with_token_types(read_state_dict(weights), "bert.embeddings"),
        names=names_of_bert(config["num_hidden_layers"]),
        sequences=[tokenize(x, tokens) for x in antibodies(description.decode())],
        mask_token=tokens["[MASK]"],
        exact_nll=0.688,
    )


SOURCES = {"rxnmapper": rxnmapper, "antiberty": antiberty}


def download(package, version, folder):
    """Returns the path of a wheel; pip downloads it if the folder lacks it."""
    pattern = f"{package}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:"]
        command += ["--dest", str(folder), f"{package}=={version}"]
        subprocess.run(command, check=True)
    return next(folder.glob(pattern))


def read(path, *names):
    """Returns the bytes of files in a wheel."""
    with zipfile.ZipFile(path) as wheel:
        return [wheel.read(name) for name in names]


def with_token_types(tensors, prefix):
    """Adds the embedding of token type 0 to positions: all tokens have that type."""
    position = f"{prefix}.position_embeddings.weight"
    of_type = tensors[f"{prefix}.token_type_embeddings.weight"][0]
    return {**tensors, position: tensors[position] + of_type}


def names_of_albert(num_layers):
    """Returns a dict from layer names to PyTorch names, which all blocks share."""
    block = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    layers = {
        "query": "attention.query",
        "key": "attention.key",
        "value": "attention.value",
        "attention_output": "attention.dense",
        "attention_norm": "attention.LayerNorm",
        "feed_forward": "ffn",
        "feed_forward_output": "ffn_output",
        "output_norm": "full_layer_layer_norm",
    }
    return {
        "token_embedding": "albert.embeddings.word_embeddings",
        "position_embedding": "albert.embeddings.position_embeddings",
        "embedding_norm": "albert.embeddings.LayerNorm",
        "embedding_to_hidden": "albert.encoder.embedding_hidden_mapping_in",
        "head": "predictions.dense",
        "head_norm": "predictions.LayerNorm",
        "logits": "predictions.decoder",
        **names_in_blocks(num_layers, block, layers),
    }


def names_of_bert(num_layers):
    layers = {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "attention_output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "feed_forward": "intermediate.dense",
        "feed_forward_output": "output.dense",
        "output_norm": "output.LayerNorm",
    }
    return {
        "token_embedding": "bert.embeddings.word_embeddings",
        "position_embedding": "bert.embeddings.position_embeddings",
        "embedding_norm": "bert.embeddings.LayerNorm",
        "head": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "logits": "cls.predictions.decoder",
        **names_in_blocks(num_layers, "bert.encoder.layer.{}", layers),
    }


def names_in_blocks(num_layers, block, layers):
    return {
        f"{ours}_{i}": f"{block.format(i)}.{theirs}"
        for i in range(num_layers)
        for ours, theirs in layers.items()
    }


def reactions(text):
    """Returns the quoted reactions in a text that have no mapped atoms."""
    quoted = re.findall(r"""["']([^"',\s]+>>[^"',\s]+)["']""", text)
    return [reaction for reaction in dict.fromkeys(quoted) if ":" not in reaction]


def antibodies(description):
    """Returns amino acid chains: our own, and the quoted ones in the description."""
    quoted = re.findall(r'"([A-Z_]{90,})"', description)
    return list(dict.fromkeys([*TRASTUZUMAB, *(x.replace("_", "") for x in quoted)]))


def tokenize(words, tokens):
    unknown = tokens["[UNK]"]
    middle = [tokens.get(word, unknown) for word in words]
    return [tokens["[CLS]"], *middle, tokens["[SEP]"]]
