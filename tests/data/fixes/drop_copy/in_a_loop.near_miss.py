# it stands in a loop, or in a function within
import torch
from torch import nn
from torch.nn import functional as F


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(16, 1))

    def forward(self, x):
        total = 0
        for _ in range(1):
            y = x.transpose(1, 2).contiguous()
            total = total + (y * self.scale).sum((0, 1, 2))
        return total


def build():
    torch.manual_seed(0)
    return Gate().eval(), (torch.randn(4, 8, 16),)
