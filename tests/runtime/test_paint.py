"""Pictures through the whole runtime, every message encoded: equal to diffusers' pipeline, alone and in crowds."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experts"))
import tiny_sd3
import torch
from diffusers import StableDiffusion3Pipeline
from test_cli import omni

from omni_runtime.errors import RequestCancelled, RequestError, RequestFailed
from omni_runtime.experts.philox_noise import normal_noise
from omni_runtime.handle import Handle, Result
from omni_runtime.program import Program
from omni_runtime.runtime import Runtime

pytestmark = [pytest.mark.torch, pytest.mark.oracle, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NEAR = 1e-4  # of a latent whose standard deviation is about 1
NODE = 1  # the denoise loop's number in the program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return tiny_sd3.write(tmp_path_factory.mktemp("sd3"))


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = StableDiffusion3Pipeline.from_pretrained(str(folder))
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture(scope="module")
def program(folder: Path) -> Program:
    found: Program = tiny_sd3.seen(folder)
    return found


@pytest.fixture
def runtime(program: Program) -> Iterator[Runtime]:
    with Runtime(program.cards.values(), executor="loopback") as made:
        yield made
        deadline = time.monotonic() + 20
        while not made.idle:
            assert time.monotonic() < deadline, "something is left over"
            time.sleep(0.002)
        for executor in made._engine._executors.values():
            counts = executor.inner.slots.counts
            while counts != (0, 0):
                assert time.monotonic() < deadline, f"{executor.name} keeps {counts}"
                time.sleep(0.002)
                counts = executor.inner.slots.counts


def theirs(pipeline: Any, prompt: str, **fields: Any) -> tuple[Any, Any]:
    """Latent [C, Y, X] and picture that the pipeline makes of our noise."""
    fields = {"steps": 5, "guidance_scale": 4.0, "width": 32, "height": 32, "seed": 7, "negative_prompt": "", **fields}
    size = (1, 4, fields["height"] // 2, fields["width"] // 2)
    noise = torch.from_numpy(normal_noise(fields["seed"], NODE, int(np.prod(size)))).view(size)
    latent = pipeline(
        prompt=prompt,
        negative_prompt=fields["negative_prompt"],
        num_inference_steps=fields["steps"],
        guidance_scale=fields["guidance_scale"],
        width=fields["width"],
        height=fields["height"],
        latents=noise,
        output_type="latent",
    ).images
    with torch.no_grad():
        raw = pipeline.vae.decode(latent / 1.5 + 0.06, return_dict=False)[0]
    return latent[0].numpy(), np.asarray(pipeline.image_processor.postprocess(raw, output_type="pil")[0])


def ask(runtime: Runtime, program: Program, prompt: str, **fields: Any) -> Handle:
    fields = {"steps": 5, "guidance_scale": 4.0, "seed": 7, "outputs": ("image", "latent", "progress"), **fields}
    return runtime.submit(program, prompt=prompt, **fields)


def same(result: Result, want: tuple[Any, Any]) -> None:
    np.testing.assert_allclose(result.outputs["latent"][0], want[0], rtol=0, atol=NEAR)
    off = np.abs(result.outputs["image"][0].astype(int) - want[1])
    assert off.max() <= 1, "rounding to 8 bits may turn 1e-4 into one level"
    assert (off > 0).mean() < 0.01
    assert want[0].std() > 0.5
    assert want[1].std() > 20, "flat: this proves nothing"


def expert(runtime: Runtime, name: str) -> Any:
    """An expert on its executor, to look at or to wrap."""
    return next(ex.inner.experts[name] for ex in runtime._engine._executors.values() if name in ex.inner.experts)


CROWD: list[tuple[str, dict[str, Any]]] = [
    ("a red cat", {}),
    ("a red cat", {"guidance_scale": 1.0}),
    ("a red cat", {"guidance_scale": 7.5, "negative_prompt": "blurred, dark"}),
    ("", {"steps": 1, "guidance_scale": 2.0}),
    ("two birds on a wire", {"steps": 9, "seed": 0}),
    ("two birds on a wire", {"steps": 9, "seed": 1, "guidance_scale": 1.0}),
    ("a house", {"steps": 3, "width": 16, "height": 64, "negative_prompt": "a garden"}),
    ("a very " + "long " * 100 + "prompt", {"steps": 2, "width": 4, "height": 8}),
]


@pytest.mark.parametrize(("prompt", "fields"), CROWD)
def test_alone(runtime: Runtime, program: Program, pipeline: Any, prompt: str, fields: dict[str, Any]) -> None:
    result = ask(runtime, program, prompt, **fields).result(60)
    same(result, theirs(pipeline, prompt, **fields))
    steps = fields.get("steps", 5)
    assert result.units["denoise"] == result.usage["denoise"]["steps"] == steps
    assert result.outputs["progress"] == [(i + 1) / steps for i in range(steps)]
    assert result.outputs["image"][0].shape == (fields.get("height", 32), fields.get("width", 32), 3)


def test_in_a_crowd_that_joins_leaves_and_cancels(runtime: Runtime, program: Program, pipeline: Any) -> None:
    """Case 20: every prompt keeps its own negative prompt, scale, size, seed and number of steps, whoever is beside it."""
    handles, leavers = [], []
    for turn in range(2):
        for i, (prompt, fields) in enumerate(CROWD):
            handles.append((ask(runtime, program, prompt, **fields), prompt, fields))
            leaver = ask(runtime, program, f"leaver {i}", steps=40 + i, seed=turn)
            leavers.append(leaver)
            if i % 2:
                next(iter(leaver))  # join while somebody is in the middle
                leavers[len(leavers) // 2].cancel()
    for leaver in leavers[::2]:
        leaver.cancel()
    for handle, prompt, fields in handles:
        same(handle.result(120), theirs(pipeline, prompt, **fields))
    for leaver in leavers:
        leaver.cancel()


def test_steps_of_different_requests_share_batches(runtime: Runtime, program: Program) -> None:
    sizes: list[int] = []
    op = expert(runtime, "sd3/transformer")
    plain = op.denoise
    op.ops = {"denoise": lambda rows, slots: sizes.append(len(rows)) or plain(rows, slots)}
    handles = [ask(runtime, program, f"{i}", steps=10 + i, guidance_scale=1.0 + i) for i in range(4)]
    for handle in handles:
        handle.result(60)
    assert max(sizes) == 4
    assert len(sizes) < 10 + 11 + 12 + 13


def test_previews_come_on_the_way_and_lead_to_the_picture(runtime: Runtime, program: Program) -> None:
    outputs = ("image", "preview", "guess", "latent", "progress")
    handle = ask(runtime, program, "a red cat", steps=9, preview_every=2, outputs=outputs)
    order = [chunk.output for chunk in handle]
    result = handle.result(60)
    assert order.index("preview") < len(order) - 1 - order[::-1].index("progress"), "the first one comes before the last step"
    assert len(result.outputs["preview"]) == len(result.outputs["guess"]) == 4
    off = [np.abs(guess - result.outputs["latent"][0]).mean() for guess in result.outputs["guess"]]
    assert off == sorted(off, reverse=True), "each is nearer to the picture"
    assert off[-1] < off[0] / 3
    plain = ask(runtime, program, "a red cat", steps=9).result(60)
    np.testing.assert_array_equal(plain.outputs["image"][0], result.outputs["image"][0])
    assert "develop" not in plain.units, "nobody asked for previews"


def test_seeds(runtime: Runtime, program: Program) -> None:
    """Case 8: image i of n is the image of seed + i, alone; the seed used is returned."""
    alone = [ask(runtime, program, "a red cat", seed=7 + i).result(60) for i in range(4)]
    latents = [result.outputs["latent"][0] for result in alone]
    for n in (4, 2):
        group = ask(runtime, program, "a red cat", n=n).result(60)
        assert group.units["encode"] == 1, "the prompt is encoded once"
        assert [sample.seed for sample in group.samples] == [7 + i for i in range(n)]
        for sample, latent in zip(group.samples, latents, strict=False):
            np.testing.assert_allclose(sample.outputs["latent"][0], latent, rtol=0, atol=1e-5)
            off = np.abs(sample.outputs["image"][0].astype(int) - alone[sample.seed - 7].outputs["image"][0])
            assert off.max() <= 1
    assert min(np.abs(a - b).mean() for i, a in enumerate(latents) for b in latents[:i]) > 0.2
    drawn = ask(runtime, program, "a red cat", seed=None).result(60)
    again = ask(runtime, program, "a red cat", seed=drawn.seed).result(60)
    np.testing.assert_array_equal(again.outputs["latent"][0], drawn.outputs["latent"][0])


def test_cancelled_between_steps_and_while_queued(program: Program) -> None:
    """Case 5: B is cancelled while it is queued, A after step 5, and then C is asked for."""
    with Runtime(program.cards.values(), executor="loopback") as fresh:
        want = ask(fresh, program, "c", steps=4).result(60)
    with Runtime(program.cards.values(), executor="loopback") as runtime:
        steps: list[tuple[int, int]] = []
        decoded: list[int] = []
        transformer, vae = expert(runtime, "sd3/transformer"), expert(runtime, "sd3/vae")
        denoise, decode = transformer.denoise, vae.decode

        def slow(rows: Any, slots: Any) -> Any:
            steps.extend((row.run, row.payload.step) for row in rows)
            time.sleep(0.01)
            return denoise(rows, slots)

        def counted(rows: Any, slots: Any) -> Any:
            decoded.extend(row.run for row in rows)
            return decode(rows, slots)

        transformer.ops, vae.ops = {"denoise": slow}, {"decode": counted}
        a = ask(runtime, program, "a", steps=50)
        progress = (chunk for chunk in a if chunk.output == "progress")
        next(progress)
        b = ask(runtime, program, "b", steps=50)
        b.cancel()
        for _ in range(4):
            next(progress)
        a.cancel()
        a.cancel()
        c = ask(runtime, program, "c", steps=4)
        result = c.result(60)
        b.cancel()
        runtime._engine.cancel(12345)  # nobody
        for handle in (a, b):
            with pytest.raises(RequestCancelled):
                handle.result(60)
        assert all(run != b.id for run, _ in steps), "it never ran a step"
        ran = [step for run, step in steps if run == a.id]
        assert ran == list(range(len(ran)))
        assert 5 <= len(ran) <= 7, "it stops at the next step boundary"
        assert decoded == [c.id]
        np.testing.assert_array_equal(result.outputs["image"][0], want.outputs["image"][0])


def test_a_request_whose_latent_overflows_fails_alone(runtime: Runtime, program: Program, pipeline: Any) -> None:
    transformer = expert(runtime, "sd3/transformer")
    plain, guilty = transformer.denoise, []

    def poisoned(rows: Any, slots: Any) -> Any:
        for row in rows:
            if row.run in guilty and row.payload.step == 3:
                with torch.inference_mode():
                    slots.read(row.payload.conditioning["embeds"][0]).fill_(float("nan"))
        return plain(rows, slots)

    transformer.ops = {"denoise": poisoned}
    guilty.append(ask(runtime, program, "x", outputs=("progress",), steps=1).id + 2)
    good, bad, other = (ask(runtime, program, prompt, steps=8) for prompt in ("good", "bad", "other"))
    with pytest.raises(RequestFailed, match=r"not finite after step 4 of 8") as caught:
        bad.result(60)
    assert caught.value.partial.outputs["progress"] == [1 / 8, 2 / 8, 3 / 8]
    for handle, prompt in ((good, "good"), (other, "other")):
        same(handle.result(60), theirs(pipeline, prompt, steps=8))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": ["p1", "p2"]}, r"prompt: one text is needed \(for several pictures submit several requests\)"),
        ({"prompt": 5}, "prompt: one text"),
        ({"prompt": "x", "negative_prompt": ["n1"]}, "negative_prompt"),
        ({"prompt": "x", "negative": "n"}, "did you mean 'negative_prompt'"),
        ({"prompt": "x", "width": 30}, "width: multiples of 4 from 4 to 64 are allowed, nearest 28 and 32, not 30"),
        ({"prompt": "x", "steps": 1001}, "at most 1000"),
        ({"prompt": "x", "guidance_scale": 0.0}, "guidance_scale"),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(runtime: Runtime, program: Program, fields: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        runtime.submit(program, **fields)


def test_the_card_needs_no_weights_to_be_drawn() -> None:
    shown = omni("show", "paint")
    assert shown.returncode == 0, shown.stderr
    assert "transformer.denoise" in shown.stdout
    assert omni("check", "sd3").stdout.strip().endswith("fine")


def test_on_the_command_line(folder: Path, pipeline: Any, tmp_path: Path) -> None:
    from PIL import Image

    out = tmp_path / "cat.png"
    options = [
        "--checkpoint",
        str(folder),
        "-o",
        str(out),
        "--steps",
        "5",
        "--guidance",
        "4",
        "--seed",
        "7",
        "--negative",
        "dark",
    ]
    looked_at = ["--timeline", str(tmp_path / "t.html"), "--trace", str(tmp_path / "t.json")]
    found = omni("paint", "a red cat", *options, "--preview-every", "2", "--json", *looked_at)
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert (told["width"], told["height"], told["seed"], told["steps"]) == (32, 32, 7, 5)
    assert told["units"] == {"encode": 1, "denoise": 5, "decode": 1, "develop": 2}
    _, want = theirs(pipeline, "a red cat", negative_prompt="dark")
    with Image.open(out) as image:
        off = np.abs(np.asarray(image).astype(int) - want)
    assert off.max() <= 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat.png", "cat.step2.png", "cat.step4.png", "t.html", "t.json"]
    assert len([e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]) >= 9


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--steps", "0"), "steps"),
        (("--width", "30"), "nearest 28 and 32"),
        (("--guidance", "0.5"), "guidance_scale"),
        (("-o", "nowhere/x.png"), "folder does not exist"),
        (("--checkpoint", "nowhere"), "model_index.json does not exist"),
    ],
)
def test_errors_on_the_command_line_are_one_sentence(folder: Path, args: tuple[str, ...], words: str) -> None:
    found = omni("paint", "a red cat", "--checkpoint", str(folder), *args)
    assert found.returncode == 1
    assert found.stdout == ""
    assert found.stderr.startswith("omni: ")
    assert words in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
