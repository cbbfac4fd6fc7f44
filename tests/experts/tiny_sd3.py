"""A tiny Stable Diffusion 3 folder with random weights: 0.4 M parameters, 32 x 32 pictures that are not flat.

python tests/experts/tiny_sd3.py FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch

MARKS = ("<|startoftext|>", "<|endoftext|>")


def reinit(module: Any, seed: int) -> Any:
    """Random weights that keep the size of what goes through; biases and norms too, or a forgotten one would not show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.dim() >= 2:
                tensor.copy_(noise * 0.8 / (tensor.numel() / tensor.shape[0]) ** 0.5)
            else:
                tensor.copy_(0.1 * noise + ("norm" in name and name.endswith("weight")))
    return module.eval()


def clip_tokenizer(folder: Path) -> Any:
    """One token a byte, as CLIP writes bytes; no merges."""
    import json

    from transformers import CLIPTokenizer

    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in shown] + [chr(256 + i) for i in range(256 - len(shown))]
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters), *MARKS]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer.from_pretrained(str(folder), model_max_length=77)


def t5_tokenizer() -> Any:
    """One token a character."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((chr(i), -3.0) for i in [0x2581, *range(33, 127)])]
    made = Tokenizer(models.Unigram(pieces, unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=32
    )


def write(folder: Path, *, third: bool = True, shard: str = "10GB", schedule: Any = None, **transformer: Any) -> Path:
    """Writes the folder and returns it.

    Args:
        folder: made if it is not there.
        third: with the T5 encoder.
        shard: size of a file of the transformer.
        schedule: keys of `scheduler_config.json`.
        transformer: keys of `transformer/config.json`.
    """
    with warnings.catch_warnings():  # about names that they will change
        warnings.simplefilter("ignore")
        _write(folder, third, shard, schedule or {"shift": 3.0}, transformer)
    return folder


def _write(folder: Path, third: bool, shard: str, schedule: Any, transformer: Any) -> None:
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

    tokenizer = clip_tokenizer(folder / "tokenizer")
    start, end = (tokenizer.convert_tokens_to_ids(mark) for mark in MARKS)
    clip = CLIPTextConfig(
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        vocab_size=len(tokenizer),
        hidden_act="gelu",
        projection_dim=32,
        bos_token_id=start,
        eos_token_id=end,
        pad_token_id=end,
    )
    t5 = T5Config(vocab_size=128, d_model=64, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    mmdit = {
        "sample_size": 16,
        "patch_size": 2,
        "in_channels": 4,
        "num_layers": 3,
        "attention_head_dim": 8,
        "num_attention_heads": 4,
        "caption_projection_dim": 32,
        "joint_attention_dim": 64,
        "pooled_projection_dim": 64,
        "out_channels": 4,
        "pos_embed_max_size": 16,
        **transformer,
    }
    vae = AutoencoderKL(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.06,
        scaling_factor=1.5,
    )
    pipeline = StableDiffusion3Pipeline(
        transformer=reinit(SD3Transformer2DModel(**mmdit), 0),
        vae=reinit(vae, 1),
        scheduler=FlowMatchEulerDiscreteScheduler(**schedule),
        text_encoder=reinit(CLIPTextModelWithProjection(clip), 2),
        tokenizer=tokenizer,
        text_encoder_2=reinit(CLIPTextModelWithProjection(clip), 3),
        tokenizer_2=tokenizer,
        text_encoder_3=reinit(T5EncoderModel(t5), 4) if third else None,
        tokenizer_3=t5_tokenizer() if third else None,
    )
    pipeline.save_pretrained(str(folder), max_shard_size=shard)


class Eye:
    """An expert that shows a latent to the host: op `look`, slot "latent" to item "values"."""

    def __init__(self) -> None:
        self.ops = {"look": self.look}

    @staticmethod
    def look(rows: Any, slots: Any) -> Any:
        from omni_runtime.work import StepResult

        return [StepResult(items={"values": [slots.read(row.payload.tensors["latent"][0]).numpy(force=True)]}) for row in rows]


def eye(options: Any, device: str) -> Eye:
    """The expert that `seen` names."""
    return Eye()


def seen(checkpoint: Path, **denoise: Any) -> Any:
    """The paint program with two outputs more: `latent`, and `guess`, the latents that previews are made of. `denoise` are fields
    of the card's denoise loop."""
    from omni_runtime.cards.sd3 import sd3

    from omni_runtime.card import Each, ExpertSpec, ModelCard, OneShot, OpLimits, Port, Slot

    card = sd3(str(checkpoint))
    look = {"expert": "eye", "op": "look", "ports": {"values": Port(type="values")}}
    card = ModelCard(
        name="sd3",
        experts={**card.experts, "eye": ExpertSpec(build="tiny_sd3:eye", ops={"look": OpLimits()})},
        loops={
            **card.loops,
            **{n: loop.model_copy(update=denoise) for n, loop in card.loops.items() if loop.kind == "diffusion_denoise"},
            "look": OneShot(reads={"latent": Slot(type="latent")}, **look),
            "glance": Each(reads={"latent": Slot(type="latent", mode="stream")}, **look),
        },
    )
    return wired(card)


def wired(card: Any) -> Any:
    """That program of that card."""
    from omni_runtime.programs.paint import paint

    program = paint(card)
    program.output("latent", program.loop("look", latent=_port("latent")).values)
    program.output("guess", program.loop("glance", latent=_port("preview")).values)
    return program


def _port(name: str) -> Any:
    from omni_runtime.program import PortRef

    return PortRef(node="denoise", port=name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
