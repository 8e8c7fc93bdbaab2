"""The models of sweeps/workloads as torch modules, from their published configurations, and small ones for tests.

Functions without arguments return (module, inputs), as `collbench capture` takes them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Self-attention with fewer heads for keys and values, without biases (Llama)."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q = self.wq(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = (
            project(x)
            .view(batch, length, self.kv_heads, -1)
            .transpose(1, 2)
            .repeat_interleave(self.heads // self.kv_heads, 1)
            for project in (self.wk, self.wv)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, kv_heads)
        self.feed_forward = FeedForward(width, hidden)
        self.attention_norm = nn.RMSNorm(width)
        self.ffn_norm = nn.RMSNorm(width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.int64)


def llama3_8b():
    return Llama(128256, 4096, 32, 32, 8, 14336).bfloat16(), tokens(1, 8192)


def llama3_70b():
    return Llama(128256, 8192, 80, 64, 8, 28672).bfloat16(), tokens(1, 8192)


def llama_four_layers():
    """Four layers whose parameters do not all divide by 8 or 1024 ranks, and an odd vocabulary."""
    return Llama(1001, 48, 4, 4, 2, 100), tokens(2, 16)


class Gpt2Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class Gpt2(nn.Module):
    """The head is tied to the token embedding."""

    def __init__(self, vocabulary: int, positions: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(positions, width)
        self.h = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def gpt2():
    return Gpt2(50257, 1024, 768, 12, 12), tokens(8, 1024)


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int, downsample: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if downsample:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(out)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inside = 64
        for number, (width, blocks, stride) in enumerate(((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)), start=1):
            made = []
            for block in range(blocks):
                made.append(Bottleneck(inside, width, stride if block == 0 else 1, downsample=block == 0))
                inside = 4 * width
            self.add_module(f"layer{number}", nn.Sequential(*made))
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def resnet50():
    return ResNet50(), torch.zeros(64, 3, 224, 224)


class VitBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    def __init__(self, patch: int, image: int, width: int, layers: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.pos_embedding = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(VitBlock(width, heads, hidden) for _ in range(layers)))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embedding
        return self.head(self.ln(self.layers(x))[:, 0])


def vit_l_16():
    return Vit(16, 224, 1024, 24, 16, 4096), torch.zeros(32, 3, 224, 224)


def twenty_linears():
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(20))), torch.zeros(4, 1024)


class Awkward(nn.Module):
    """A tied, a frozen and (where asked for) an unused parameter; layers that run in another order; a scalar."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.tied = nn.Linear(300, 300, bias=False)
        self.first = nn.Linear(300, 300)
        self.frozen = nn.Linear(300, 300).requires_grad_(False)
        self.second = nn.Linear(300, 300)
        self.again = nn.Linear(300, 300, bias=False)
        self.again.weight = self.tied.weight
        self.scale = nn.Parameter(torch.ones(()))
        if unused:
            self.unused = nn.Linear(200, 200)

    def forward(self, x):
        return self.again(self.first(self.frozen(self.second(self.tied(x))))) * self.scale


def awkward():
    return Awkward(unused=False), torch.zeros(4, 300)


def awkward_with_unused():
    return Awkward(unused=True), torch.zeros(4, 300)
