# the function switches gradients on or off
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(16, 16)
        self.right = nn.Linear(16, 16)

    def forward(self, x):
        y = x.transpose(1, 2)
        torch.set_grad_enabled(False)
        left = self.left(y.contiguous())
        torch.set_grad_enabled(True)
        return left * self.right(y.contiguous())


def build():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 16, 8),)
