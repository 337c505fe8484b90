# an argument is not a plain number
import torch
from torch import nn
from torch.nn import functional as F


class Chain(nn.Module):
    def forward(self, x):
        first = x.dim() - 2
        return torch.relu(x.permute(0, first, 1, 3).transpose(1, first))


def build():
    torch.manual_seed(0)
    return Chain().eval(), (torch.randn(2, 3, 4, 5),)
