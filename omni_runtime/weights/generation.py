"""generation_config.json: which tokens end an answer, and how its makers draw. Loads without torch.

Models of several parts write a part's settings behind its name: `talker_temperature`. What stands there without a name is the
thinker's, and gives way to `thinker_` (the arguments of `generate` in transformers' Qwen-Omni classes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omni_runtime.errors import RequestError
from omni_runtime.request import ArParams
from omni_runtime.weights.json_file import Fields, read_json

FILE = "generation_config.json"

# Settings that mean the same here and there: they become defaults.
_SHARED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# What changes an answer and is no default here, with the values at which it changes nothing.
_ELSEWHERE: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "top_h": (),
    "diversity_penalty": (0.0,),
    "length_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_decoder_ids": ([],),
    "sequence_bias": (),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    "token_healing": (False,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "constraints": (),
    "force_words_ids": (),
    "stop_strings": (),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "max_new_tokens": (),  # a request says how long its answer may be, the context is the limit
    "max_length": (20,),  # what old versions wrote into every file
}
_NOTES = {"bos_token_id", "pad_token_id", "decoder_start_token_id", "early_stopping", "use_cache", "cache_implementation"}
_NOTES |= {"cache_config", "return_legacy_cache", "prefill_chunk_size", "compile_config", "disable_compile", "low_memory"}
_NOTES |= {"num_return_sequences", "output_attentions", "output_hidden_states", "output_scores", "output_logits"}
_NOTES |= {"return_dict_in_generate", "transformers_version", "_from_model_config", "generation_kwargs", "is_assistant"}
_NOTES |= {"num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens"}
_NOTES |= {"max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "chat_format"}


class Generation(NamedTuple):
    """`defaults` are parameters of a `think` loop; `notes` say what the file asks for and does not become a default."""

    stop_tokens: tuple[int, ...]
    defaults: dict[str, Any]
    notes: tuple[str, ...]


def read_generation(folder: Path, stop_tokens: tuple[int, ...], vocab: int, parts: Sequence[str] = ()) -> Generation:
    """What the file says; without one, the stop tokens of config.json and no defaults.

    Greedy decoding (`do_sample` false or missing) becomes temperature 0, and what shapes a draw is left out then.

    Args:
        folder: where the file may be.
        stop_tokens: of config.json, used where this file names none.
        vocab: ids are below it.
        parts: of the model, the thinker first; settings of the others are for `read_talker`.

    Raises:
        CheckpointError: it is damaged, a key is unknown, or a value is one that no request may have.
    """
    path = folder / FILE
    if not path.exists():
        return Generation(stop_tokens, {}, ())
    values = read_json(path)
    plain = {key: value for key, value in values.items() if key.partition("_")[0] not in parts}
    f = Fields(path, plain | (_named(values, parts[0]) if parts else {}))
    f.only({"eos_token_id", "do_sample", *_SHARED, *_ELSEWHERE, *_NOTES})
    stop = f.ids("eos_token_id")
    if stop and max(stop) >= vocab:
        raise f.wrong("eos_token_id", f"{max(stop)} is not in the vocabulary of {vocab}")
    sample = f.flag("do_sample", False)
    # Drawn at temperature 1, where the file does not say another.
    defaults = {"temperature": 1.0 if sample else 0.0} | _shared(f, sample)
    return Generation(stop or stop_tokens, defaults, _unused(f))


def read_talker(
    folder: Path, usual: Mapping[str, Any], eos: Sequence[int], unsaid: int = 1
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parameters of a `talk` loop as the file says, or as usual: its keys begin with "talker_". And notes, as `Generation` has.

    A talker draws where the file does not say that it does not. Of the n codes that its makers let it draw by
    `talker_max_new_tokens`, the last `unsaid` are never spoken: one of Qwen3-Omni's, none of Qwen2.5-Omni's. Codes other than
    `eos`, which end an answer by config.json, are noted.

    Raises:
        CheckpointError: as `read_generation`.
    """
    path = folder / FILE
    if not path.exists():
        return dict(usual), ()
    f = Fields(path, _named(read_json(path), "talker"), "talker_")
    f.only({"eos_token_id", "do_sample", *_SHARED, *_ELSEWHERE, *_NOTES})
    sample = f.flag("do_sample", True)
    found = dict(usual) | _shared(f, sample) | ({} if sample else {"temperature": 0.0})
    if "max_new_tokens" in f:
        found["max_frames"] = f.count("max_new_tokens") - unsaid
    notes = [note for note in _unused(f, "talker_") if "max_new_tokens" not in note]
    if not set(f.ids("eos_token_id")) <= set(eos):
        notes.append(f"{FILE}: talker_eos_token_id={f.values['eos_token_id']!r} is not used, config.json says {list(eos)}")
    return found, tuple(notes)


def _named(values: Mapping[str, Any], part: str) -> dict[str, Any]:
    return {key.removeprefix(f"{part}_"): value for key, value in values.items() if key.startswith(f"{part}_")}


def _shared(f: Fields, sample: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _SHARED:
        if name not in f or (not sample and name != "repetition_penalty"):
            continue
        value = f.count(name, least=0) if name == "top_k" else f.number(name, least=0.0)
        try:
            ArParams(**{name: value})
        except RequestError as error:
            raise f.wrong(name, f"no request may ask for that: {error}") from None
        found[name] = value
    return found


def _unused(f: Fields, prefix: str = "") -> tuple[str, ...]:
    """Notes of what changes an answer and is no default here."""
    asked = [key for key, off in _ELSEWHERE.items() if key in f and f.values[key] not in off]
    return tuple(f"{FILE}: {prefix}{key}={f.values[key]!r} is not used" for key in asked)
