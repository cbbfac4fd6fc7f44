"""What a Hugging Face folder holds, checked without reading a weight."""

from __future__ import annotations

from pathlib import Path

from omni_runtime.weights import memory, qwen3_omni_config
from omni_runtime.weights.folder_config import read_config
from omni_runtime.weights.folder_tokenizer import folder_tokenizer
from omni_runtime.weights.generation import read_generation, read_talker
from omni_runtime.weights.json_file import Fields, read_json
from omni_runtime.weights.preprocessor import read_patch_rules
from omni_runtime.weights.qwen3_omni import OmniFolder
from omni_runtime.weights.qwen3_omni_parts import parameters
from omni_runtime.weights.tensor_files import HEAD, take_stock


def report(folder: Path) -> list[str]:
    """Lines for a human: shape, tensors, memory, tokenizer, and what the folder says that is not used.

    Raises:
        CheckpointError: as loading would, except that a stored head of a tied model is not compared.
    """
    folder = folder.resolve()
    path = folder / "config.json"
    if path.is_file() and Fields(path, read_json(path)).items("architectures", []) == [qwen3_omni_config.ARCHITECTURE]:
        return _omni(folder)
    architecture, config, stop = read_config(folder)
    generation = read_generation(folder, stop, config.vocab)
    stock = take_stock(folder, config)
    tokenizer = folder_tokenizer(folder)
    sparse = config.sparse
    shape = (
        f"{architecture}: {config.layers} layers of width {config.width}, vocabulary {config.vocab}, context {config.positions}"
    )
    if sparse:
        shape += f", {sparse.chosen} of {sparse.experts} experts in {len(sparse.layers)} layers"
    weights, _ = memory.needs(config)
    room = memory.available()
    size = (
        f"{len(stock.entries)} tensors, {stock.nbytes:,} bytes in files, {weights:,} in memory; a token of KV {config.kv_bytes:,}"
    )
    lines = [shape, size + ("" if room is None else f"; available {room:,}")]
    draw = ", ".join(f"{name} {value:g}" for name, value in generation.defaults.items()) or "greedy"
    lines.append(
        f"{len(tokenizer.control)} special tokens; an answer ends with {list(generation.stop_tokens)}; drawn with {draw}"
    )
    if stock.head is not None:
        lines.append(f"note: {HEAD} is stored beside the embedding it is tied to; loading compares them")
    lines += [f"note: {note}" for note in (*stock.notes, *generation.notes)]
    memory.check(folder, config)
    return lines


def _omni(folder: Path) -> list[str]:
    """The same for the parts of a Qwen3-Omni, with the memory of each in both types that it may be kept in."""
    found = OmniFolder(folder)
    c = found.config
    rules = read_patch_rules(folder, c)
    tokenizer = folder_tokenizer(folder, c.thinker.vocab)
    lines = [f"{qwen3_omni_config.ARCHITECTURE}: {len(found)} tensors; {len(tokenizer.control)} special tokens"]
    for part, count in parameters(c).items():
        sizes = f"{2 * count:,} bytes in bfloat16, {4 * count:,} in float32"
        lines.append(f"{part}: {count:,} parameters, {sizes}")
    lines.append(
        f"a token of KV: thinker {c.thinker.kv_bytes:,}" + (f", talker {c.talker.decoder.kv_bytes:,}" if c.talker else "")
    )
    lines.append(f"pictures of {rules.least:,} to {rules.most:,} pixels, a vector for {rules.factor} x {rules.factor}")
    if c.talker and c.vocoder:
        speakers = ", ".join(sorted(c.talker.speakers)) or "none"
        lines.append(f"speakers {speakers}; {c.vocoder.hop} samples a frame of {c.talker.groups} codes")
    else:
        lines.append("no voice: only text can be asked of it")
    notes = read_generation(folder, (c.tokens.im_end,), c.thinker.vocab, qwen3_omni_config.PARTS).notes
    notes += read_talker(folder, {}, [c.talker.eos])[1] if c.talker else ()
    return lines + [f"note: {note}" for note in notes]
