# what reads it may need its strides, or keep it, for other sizes or in other branches
import torch
from torch import nn
from torch.nn import functional as F


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(16, 1))

    def forward(self, x):
        if (y := x.transpose(1, 2).contiguous()).shape[0]:
            return (y * self.scale).sum((0, 1, 2))
        return y.sum()


def build():
    torch.manual_seed(0)
    return Gate().eval(), (torch.randn(4, 8, 16),)
