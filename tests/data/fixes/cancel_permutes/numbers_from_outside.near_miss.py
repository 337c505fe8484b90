# an argument is not a plain number
import torch
from torch import nn
from torch.nn import functional as F


class Chain(nn.Module):
    def forward(self, x):
        first = x.dim() - 2
        return torch.relu(x.transpose(first, 1).transpose(first, 1))


def build():
    torch.manual_seed(0)
    return Chain().eval(), (torch.randn(2, 3, 4, 5),)
