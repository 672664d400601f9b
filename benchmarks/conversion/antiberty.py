"""AntiBERTy 0.1.3: BERT of antibodies, under the MIT licence.

Ruffolo et al. 2021, arXiv 2112.07782: 8 layers of 8 heads of 64.
"""

import json
import re

from benchmarks.conversion import bert, wheels
from benchmarks.conversion.pretrained import Pretrained, with_token_types
from benchmarks.conversion.torch_files import read_state_dict

PACKAGE, VERSION = "antiberty", "0.1.3"
FOLDER = "antiberty/trained_models"
# The variable domains of trastuzumab; the other sequences are those of the package's
# own examples, without the residues that are left out there to be guessed.
TRASTUZUMAB = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAY"
    "LQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQP"
    "EDFATYYCQQHYTTPPTFGQGTKVEIK",
)
LAYERS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward": "intermediate.dense",
    "feed_forward_output": "output.dense",
    "output_norm": "output.LayerNorm",
}


def load(folder):
    """Returns the `Pretrained`; its wheel is downloaded into a folder if missing."""
    config, weights, vocabulary, description = wheels.read(
        wheels.download(PACKAGE, VERSION, folder),
        f"{FOLDER}/AntiBERTy_md_smooth/config.json",
        f"{FOLDER}/AntiBERTy_md_smooth/pytorch_model.bin",
        f"{FOLDER}/vocab.txt",
        f"{PACKAGE}-{VERSION}.dist-info/METADATA",
    )
    config = bert.config_of(json.loads(config))
    tokens = {token: index for index, token in enumerate(vocabulary.decode().split())}
    return Pretrained(
        name=f"{PACKAGE} {VERSION}",
        config=config,
        tensors=with_token_types(read_state_dict(weights), "bert.embeddings"),
        names=names(config.num_layers),
        sequences=[tokenize(text, tokens) for text in sequences(description.decode())],
        mask_token=tokens["[MASK]"],
        exact_nll=0.688,
    )


def names(num_layers):
    """PyTorch's names by those of the layers."""
    return {
        "token_embedding": "bert.embeddings.word_embeddings",
        "position_embedding": "bert.embeddings.position_embeddings",
        "embedding_norm": "bert.embeddings.LayerNorm",
        "head": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "logits": "cls.predictions.decoder",
        **bert.names_in_blocks(num_layers, "bert.encoder.layer.{}", LAYERS),
    }


def sequences(description):
    """Chains of amino acids, of the text of the package's examples and our own."""
    quoted = re.findall(r'"([A-Z_]{90,})"', description)
    return list(dict.fromkeys([*TRASTUZUMAB, *(x.replace("_", "") for x in quoted)]))


def tokenize(text, tokens):
    return [tokens[token] for token in ("[CLS]", *text, "[SEP]")]
