"""Copies a GGUF file, and adds a vocabulary of made-up words: `python gguf_vocabulary.py SOURCE OUT`.

It runs in the environment of the peer llama.cpp. The benchmark's conversion writes no vocabulary, which llama-server
needs to turn tokens into text. Tensors do not change. Token i is " t<i>", as in the checkpoint's own tokenizer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

NORMAL, UNKNOWN = 1, 2  # the kinds of tokens in GGUF


def copy_with_vocabulary(source: Path, out: Path) -> None:
    import gguf

    reader = gguf.GGUFReader(source)
    kind = _value(reader.fields["general.architecture"])
    writer = gguf.GGUFWriter(out, kind)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "tokenizer.", "general.architecture")):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, _value(field), field.types[0], sub_type)
    size = int(_value(reader.fields[f"{kind}.vocab_size"]))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"▁t{i}" for i in range(size - 1)] + ["<unk>"])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([NORMAL] * (size - 1) + [UNKNOWN])
    for add in (writer.add_unk_token_id, writer.add_bos_token_id, writer.add_eos_token_id):
        add(size - 1)
    writer.add_add_bos_token(False)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _value(field: Any) -> Any:
    return field.contents()


if __name__ == "__main__":
    source, out = map(Path, sys.argv[1:])
    part = out.with_suffix(".part")
    copy_with_vocabulary(source, part)
    part.rename(out)
