# line 11 makes what may write in place
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(16, 16)
        self.right = nn.Linear(16, 16)
        self.act = nn.ReLU(True)

    def forward(self, x):
        y = x.transpose(1, 2)
        left = self.left(y.contiguous())
        if self.training:
            self.act(y)
        return left * self.right(y.contiguous())


def build():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(4, 16, 8),)
