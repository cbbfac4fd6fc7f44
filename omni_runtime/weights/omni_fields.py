"""What the configurations of omni folders share. Loads without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_runtime.errors import CheckpointError, unknown
from omni_runtime.weights.folder_config import NOTES
from omni_runtime.weights.json_file import Fields, read_json

# What configurations of transformers 4 repeat in every nested object: none of it is read by the parts.
NESTED = NOTES | {
    "is_decoder",
    "is_encoder_decoder",
    "add_cross_attention",
    "cross_attention_hidden_size",
    "tie_encoder_decoder",
}
NESTED |= {"pruned_heads", "tf_legacy_loss", "decoder_start_token_id", "max_length", "min_length", "do_sample", "early_stopping"}
NESTED |= {"num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "output_scores"}
NESTED |= {"repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"}
NESTED |= {"num_return_sequences", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "suppress_tokens"}
NESTED |= {"return_dict_in_generate", "begin_suppress_tokens", "exponential_decay_length_penalty", "model_type", "dropout"}
NESTED |= {"tie_word_embeddings", "activation_dropout", "output_router_logits", "router_aux_loss_coef", "seconds_per_chunk"}
NESTED |= {"architectures"}

ROPE = {"rope_theta", "rope_scaling", "rope_parameters"}
DECODER = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
DECODER |= {"head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act"} | ROPE
DECODER |= {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}


def read_values(folder: Path) -> tuple[Mapping[str, Any], Path]:
    """config.json of a folder, and where it is.

    Raises:
        CheckpointError: no such folder or file, or no sound JSON.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder; give one that holds config.json and *.safetensors")
    path = folder / "config.json"
    return read_json(path, "give the folder that holds it, or fetch it again"), path


def architecture(f: Fields, names: tuple[str, ...], kind: str) -> None:
    """Whether the file describes this kind of model.

    Raises:
        CheckpointError: it does not.
    """
    named = f.items("architectures", [names[0]])
    if len(named) != 1 or named[0] not in names:
        raise f.wrong("architectures", unknown("architecture", named[0] if len(named) == 1 else named, names))
    if (found := f.text("model_type", kind)) != kind:
        raise f.wrong("model_type", f"{found!r} contradicts architecture {named[0]}; it is {kind!r} there")


def part(f: Fields, key: str) -> Fields:
    """A nested object that must be there."""
    inner = f.inner(key)
    if inner is None:
        raise f.wrong(key, "is missing, an object is needed")
    return inner


def token(f: Fields, key: str, vocab: int, usual: int | None = None) -> int:
    """A token of the vocabulary; `usual` where the file says nothing."""
    found: int = f.count(key, least=0) if usual is None else f.count(key, usual, least=0)
    if found >= vocab:
        raise f.wrong(key, f"{found} is not in the vocabulary of {vocab}")
    return found


def rope(f: Fields, interleaved: bool = True) -> tuple[float, tuple[int, int, int] | None]:
    """Base, and frequencies of time, height and width; `rope_parameters` is of transformers 5, the others of 4.

    `interleaved`: how the frequencies of the three are told to lie.
    """
    inner = f.inner("rope_parameters") or f.inner("rope_scaling")
    theta = f.number("rope_theta", None)
    if inner is None:
        return theta or 10_000.0, None
    inner.only({"rope_theta", "rope_type", "type", "mrope_section", "interleaved", "mrope_interleaved"})
    for key in ("rope_type", "type"):
        only_value(inner, key, "default", "mrope")  # the second is the same by its older name
    for key in ("interleaved", "mrope_interleaved"):
        only_value(inner, key, interleaved)
    within = inner.number("rope_theta", None)
    if theta is not None and within is not None and theta != within:
        raise f.wrong("rope_theta", f"{theta:g} contradicts {within:g} in rope_parameters; keep one of them")
    least = int(interleaved)
    section = inner.items("mrope_section", None)
    if section is not None and (len(section) != 3 or not all(type(n) is int and n >= least for n in section)):
        raise inner.wrong("mrope_section", f"three {'positive ' * least}numbers are needed, not {section!r:.80}")
    return theta or within or 10_000.0, tuple(section) if section else None


def whole(f: Fields, key: str, *default: list[int], least: int = 1) -> tuple[int, ...]:
    """A list of whole numbers, `least` or more."""
    found = f.items(key, *default)
    if not all(type(n) is int and n >= least for n in found):
        raise f.wrong(key, f"whole numbers from {least} on are needed, not {f.values[key]!r:.80}")
    return tuple(found)


def full_attention(f: Fields) -> None:
    """Whether every layer of a decoder sees all that came before."""
    if any(kind != "full_attention" for kind in f.items("layer_types", [])) or f.flag("use_sliding_window", False):
        raise f.wrong("layer_types", "a sliding window is not computed by this decoder, only full attention")


def only_value(f: Fields, key: str, *values: Any) -> None:
    """Whether a key that changes what is computed has a value at which it does not."""
    if key in f and f.values[key] not in values:
        raise f.wrong(key, f"{f.values[key]!r} is not computed here, only {' or '.join(map(repr, values))} is")
