# another copy stands before it: fix that one first
import torch
from torch import nn
from torch.nn import functional as F


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(16, 1))

    def forward(self, x):
        y = x.transpose(1, 2).contiguous()
        z = y.clone(memory_format=torch.contiguous_format)
        return (z * self.scale).sum((0, 1, 2))


def build():
    torch.manual_seed(0)
    return Gate().eval(), (torch.randn(4, 8, 16),)
