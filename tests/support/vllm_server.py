"""A real HTTP server with vLLM's routes for rollouts, over a tiny model and saved adapters."""

from contextlib import contextmanager

import torch
from aiohttp import web
from peft import PeftModel

from support.openai_server import listening
from waltzrl.policies.decode import Ask, decode
from waltzrl.policies.weights import activate_adapter


class VllmServer:
    """Serves a base, and the adapters that it is told to load."""

    def __init__(self, causal_lm, *, loads_adapters=True, leaves_out=()):
        self.model, self.tokenizer = causal_lm.model, causal_lm.tokenizer
        self.loads_adapters = loads_adapters
        """Whether it was started with --enable-lora and may load adapters while it runs."""
        self.leaves_out = leaves_out
        """Fields that completions lack."""
        self.adapters = {}
        """Folder of each loaded adapter, by name."""
        self.loaded, self.unloaded = [], []
        """Names, in order."""
        self.completions = []
        """The JSON body of every request for a completion."""
        self.asked = []
        """Path, and name of the adapter, of every request that was answered."""
        self.dies_after = None
        """Requests after which every connection breaks off, as when the process is killed."""
        self.url = ""

    def restart(self):
        """Answer again, without an adapter."""
        self.dies_after = None
        self.adapters.clear()
        if isinstance(self.model, PeftModel):
            self.model = self.model.unload()

    async def models(self, request):
        base = {"id": "base", "object": "model", "parent": None}
        adapters = [{"id": name, "object": "model", "parent": "base"} for name in self.adapters]
        return web.json_response({"object": "list", "data": [base, *adapters]})

    async def tokenize(self, request):
        ids = self.tokenizer((await request.json())["prompt"])["input_ids"]
        return web.json_response({"count": len(ids), "tokens": ids})

    async def load(self, request):
        asked = await request.json()
        name, folder = asked["lora_name"], asked["lora_path"]
        if name in self.adapters:
            return _error(400, f"The lora adapter {name!r} has already been loaded.")
        if isinstance(self.model, PeftModel):
            self.model.load_adapter(folder, name)
        else:
            self.model = PeftModel.from_pretrained(self.model, folder, name)
        self.adapters[name] = folder
        self.loaded.append(name)
        return web.Response(text=f"Success: LoRA adapter {name!r} added successfully.")

    async def unload(self, request):
        name = (await request.json())["lora_name"]
        if self.adapters.pop(name, None) is None:
            return _error(404, f"The lora adapter {name!r} cannot be found.")
        self.unloaded.append(name)
        return web.Response(text=f"Success: LoRA adapter {name!r} removed successfully.")

    async def complete(self, request):
        asked = await request.json()
        adapter = None if asked["model"] == "base" else asked["model"]
        if adapter is not None and adapter not in self.adapters:
            return _error(404, f"The model {adapter!r} does not exist.")
        if len(asked["prompt"]) + asked["max_tokens"] > self.model.config.max_position_embeddings:
            return _error(400, "This model's maximum context length is too short.")
        self.completions.append(asked)
        ask = Ask(prompt=tuple(asked["prompt"]), limit=asked["max_tokens"], seed=asked["seed"])
        with activate_adapter(self.model, adapter) as model:
            chance, generator = asked["temperature"], torch.Generator()
            decoded = decode(model, [ask], chance, asked["stop_token_ids"], generator)[0]
        choice = {
            "index": 0,
            "text": self.tokenizer.decode(decoded.ids, skip_special_tokens=True),
            "finish_reason": decoded.finish,
            "logprobs": {"token_logprobs": list(decoded.logprobs)},
            "token_ids": list(decoded.ids),
        }
        for field in self.leaves_out:
            del choice[field]
        head = {"id": "cmpl-1", "object": "text_completion", "model": asked["model"]}
        return web.json_response(head | {"choices": [choice]})

    @web.middleware
    async def alive(self, request, handler):
        if self.dies_after is not None and len(self.asked) >= self.dies_after:
            request.transport.abort()
            return web.Response()
        body = await request.json() if request.can_read_body else {}
        self.asked.append((request.path, body.get("lora_name", body.get("model", ""))))
        return await handler(request)


@contextmanager
def serving(causal_lm, **options):
    """Serve a base on a free port for as long as the block runs; yield the server."""
    server = VllmServer(causal_lm, **options)
    app = web.Application(middlewares=[server.alive])
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/tokenize", server.tokenize)
    app.router.add_post("/v1/completions", server.complete)
    if server.loads_adapters:
        app.router.add_post("/v1/load_lora_adapter", server.load)
        app.router.add_post("/v1/unload_lora_adapter", server.unload)
    with listening(app) as url:
        server.url = url
        yield server


def _error(status, message):
    return web.json_response({"error": {"message": message}}, status=status)
