r"""A character tokenizer in Hugging Face form.

One token a printable ASCII character or newline, one for ``\boxed{`` (seven characters that always come
together), and ``<bos>``, ``<eos>``, ``<pad>``. Encoding puts ``<bos>`` in front, as Llama's tokenizers do.
A character outside the vocabulary becomes a question mark.
"""

from __future__ import annotations

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

BOS, EOS, PAD = "<bos>", "<eos>", "<pad>"
BOX = "\\boxed{"
CHARACTERS = (
    string.digits
    + "\n+-=?,}"
    + "".join(
        character
        for character in map(chr, range(32, 127))
        if character not in string.digits and character not in "+-=?,}"
    )
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer; the same vocabulary every time.

    >>> build_tokenizer().decode(build_tokenizer()("1+2?").input_ids)
    '<bos>1+2?'
    """
    tokens = [PAD, BOS, EOS, BOX, *CHARACTERS]
    core = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokens.index(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )
