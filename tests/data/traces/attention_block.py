import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.projection = nn.Linear(width, 3 * width)
        self.heads = heads

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.projection(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q = q.contiguous()
        scores = torch.matmul(q, k.transpose(-1, -2)).softmax(-1)
        return torch.matmul(scores, v).transpose(1, 2).reshape(batch, tokens, width)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.attention = Attention(16, 2)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = x.flatten(2).transpose(1, 2)
        x = x.contiguous()
        return self.attention(x).sum()


model, images = Block(), torch.randn(2, 3, 16, 16)
model(images).backward()
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
    record_shapes=True,
    with_stack=True,
) as profiler:
    for _ in range(3):
        model(images).backward()
        profiler.step()
profiler.export_chrome_trace("attention_block_torch215.json.gz")
