"""The parameters of sampling against transformers: penalties token by token, kept sets, and the order of everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_decoder_oracle import reference  # noqa: E402
from test_sampling_parameters import history, speak  # noqa: E402
from tiny import CONFIGS, random_tokens, random_weights  # noqa: E402

from omni_runtime.draw import Draw, Edits  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM  # noqa: E402
from omni_runtime.experts.edits import edited  # noqa: E402
from omni_runtime.experts.sampling import kept  # noqa: E402
from omni_runtime.experts.text_lm import TextLM  # noqa: E402

V = 400


@pytest.mark.parametrize("penalty", [1.0, 1.2, 3.0, 0.7])
def test_greedy_with_repetition_penalty(penalty: float) -> None:
    """Teacher forcing, as in test_decoder_oracle.py: only where two tokens are equal but for rounding may choices differ."""
    config = CONFIGS["qwen2"]
    weights = random_weights(config)
    lm, model = TextLM(DecoderLM(config, weights), [b""] * config.vocab), reference(config, weights)
    prompt = random_tokens(20, seed=8)
    answer = speak(lm, prompt, 40, Draw(0, 0, edits=Edits(repetition=penalty)), chunk=7)
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    with torch.inference_mode():
        logits_TV = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    for i, token in enumerate(answer):
        scores_V = processor(torch.tensor([prompt + answer[:i]]), logits_TV[i : i + 1])[0]
        assert float(scores_V.max() - scores_V[token]) < 1e-4, f"token {i}"
    assert (answer == speak(lm, prompt, 40, Draw(0, 0), chunk=7)) == (penalty == 1)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(7, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.08), (60, 0.9, 0.0), (90, 0.8, 0.02)]
)
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.9])
def test_kept_tokens_and_the_order_of_steps(seed: int, top_k: int, top_p: float, min_p: float, temperature: float) -> None:
    """transformers builds its own list of processors from a configuration: what is left, and its probabilities, are ours."""
    rng = np.random.default_rng(seed)
    logits_V = torch.from_numpy(rng.normal(size=V) * 3)
    prompt, answer = rng.integers(0, V, 9).tolist(), rng.integers(0, V, 5).tolist()
    bias = {(int(i),): float(x) for i, x in zip(rng.choice(V, 5, replace=False), rng.normal(size=5) * 9, strict=True)}
    stop, least = [int(logits_V.argmax()), 3], 5 + seed % 2  # the next token is number 5: with 5 nothing is banned any more
    settings = transformers.GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p or None,
        repetition_penalty=1.4,
        sequence_bias=bias,
        min_new_tokens=least,
        eos_token_id=stop,
    )
    settings._eos_token_tensor = torch.tensor(stop)
    config = CONFIGS["llama"]
    processors: Any = reference(config, random_weights(config))._get_logits_processor(
        settings, input_ids_seq_length=len(prompt), device="cpu"
    )
    names = [type(p).__name__ for p in processors]
    assert len(names) == 3 + (temperature != 1) + (top_k > 0) + (top_p < 1) + (min_p > 0), names
    theirs_V = processors(torch.tensor([prompt + answer]), logits_V[None].clone())[0].numpy()
    pairs = sorted((ids[0], x) for ids, x in bias.items())
    edits = Edits(tuple(i for i, _ in pairs), tuple(x for _, x in pairs), 1.4, 0.0, 0.0, tuple(sorted(stop)), least)
    ours_V = edited(logits_V.numpy(), edits, len(answer), history(prompt, answer))
    score_V = (ours_V - ours_V.max()) / temperature
    ids_C = kept(score_V, Draw(0, 0, temperature, top_p, top_k, min_p))
    assert ids_C.tolist() == np.flatnonzero(np.isfinite(theirs_V)).tolist(), names
    np.testing.assert_allclose(score_V[ids_C], theirs_V[ids_C] - theirs_V.max(), rtol=1e-6, atol=1e-6)  # their bias is float32
    assert np.isfinite(ours_V[stop]).all() == (least == 5)
