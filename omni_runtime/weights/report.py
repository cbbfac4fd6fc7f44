"""What a Hugging Face folder holds, checked without reading a weight."""

from __future__ import annotations

from pathlib import Path

from omni_runtime.weights import memory, qwen2_5_omni_config, qwen2_5_omni_parts, qwen3_omni_config, qwen3_omni_parts
from omni_runtime.weights.folder_config import read_config
from omni_runtime.weights.folder_tokenizer import folder_tokenizer
from omni_runtime.weights.generation import read_generation, read_talker
from omni_runtime.weights.json_file import Fields, read_json
from omni_runtime.weights.omni_folder import TensorFolder
from omni_runtime.weights.omni_parts import PARTS
from omni_runtime.weights.preprocessor import read_patch_rules
from omni_runtime.weights.qwen2_5_omni import Qwen25Folder
from omni_runtime.weights.qwen2_5_omni_parts import Qwen25Config
from omni_runtime.weights.qwen3_omni import OmniFolder
from omni_runtime.weights.qwen3_omni_parts import OmniConfig
from omni_runtime.weights.tensor_files import HEAD, take_stock


def report(folder: Path) -> list[str]:
    """Lines for a human: shape, tensors, memory, tokenizer, and what the folder says that is not used.

    Raises:
        CheckpointError: as loading would, except that a stored head of a tied model is not compared.
    """
    folder = folder.resolve()
    path = folder / "config.json"
    named = Fields(path, read_json(path)).items("architectures", []) if path.is_file() else []
    if named == [qwen3_omni_config.ARCHITECTURE]:
        return _omni(folder)
    if len(named) == 1 and named[0] in qwen2_5_omni_config.ARCHITECTURES:
        return _omni25(folder)
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
    """The same for the parts of a Qwen3-Omni."""
    found = OmniFolder(folder)
    c = found.config
    voice = None
    if c.talker and c.vocoder:
        speakers = ", ".join(sorted(c.talker.speakers)) or "none"
        voice = f"speakers {speakers}; {c.vocoder.hop} samples a frame of {c.talker.groups} codes"
    ends = (c.tokens.im_end,), [c.talker.eos] if c.talker else []
    return _parts(qwen3_omni_config.ARCHITECTURE, found, c, qwen3_omni_parts.parameters(c), voice, *ends)


def _omni25(folder: Path) -> list[str]:
    """The same for the parts of a Qwen2.5-Omni."""
    found = Qwen25Folder(folder)
    c = found.config
    voice = None
    if c.flow and c.waves:
        voice = f"speakers {', '.join(sorted(found.speakers()))}; {c.flow.repeats * c.waves.hop} samples a code"
    codes = [c.talker.pad, c.talker.eos] if c.talker else []
    return _parts(qwen2_5_omni_config.ARCHITECTURES[0], found, c, qwen2_5_omni_parts.parameters(c), voice, c.stop, codes)


def _parts(
    name: str,
    found: TensorFolder,
    c: OmniConfig | Qwen25Config,
    counts: dict[str, int],
    voice: str | None,
    stop: tuple[int, ...],
    codes: list[int],
) -> list[str]:
    """Tensors, parts with the memory of each in both types that it may be kept in, pictures, who speaks, and what is not used.

    Answers end by config.json with `stop`, and sound with `codes`.
    """
    rules = read_patch_rules(found.folder, c)
    tokenizer = folder_tokenizer(found.folder, c.thinker.vocab)
    lines = [f"{name}: {len(found)} tensors; {len(tokenizer.control)} special tokens"]
    for part, count in counts.items():
        lines.append(f"{part}: {count:,} parameters, {2 * count:,} bytes in bfloat16, {4 * count:,} in float32")
    talker = f", talker {c.talker.decoder.kv_bytes:,}" if c.talker else ""
    lines.append(f"a token of KV: thinker {c.thinker.kv_bytes:,}{talker}")
    lines.append(f"pictures of {rules.least:,} to {rules.most:,} pixels, a vector for {rules.factor} x {rules.factor}")
    lines.append(voice or "no voice: only text can be asked of it")
    notes = read_generation(found.folder, stop, c.thinker.vocab, PARTS).notes
    notes += read_talker(found.folder, {}, codes)[1] if c.talker else ()
    return lines + [f"note: {note}" for note in notes]
