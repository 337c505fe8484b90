"""Networks that public traces were recorded of, as the traces call them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from zoo_entry import CLASSES, IMAGE

Built = tuple[nn.Module, tuple[Any, ...]] | tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def resnet18() -> Built:
    """ResNet-18, 32 images."""
    return _build_resnet("basic", [2, 2, 2, 2], [64, 128, 256, 512])


def resnet50() -> Built:
    """ResNet-50, 32 images."""
    return _build_resnet("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048])


def _build_resnet(kind: str, depths: list[int], sizes: list[int]) -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(layer_type=kind, depths=depths, hidden_sizes=sizes, num_labels=CLASSES)
    return ResNetForImageClassification(config).eval(), (torch.randn(32, 3, IMAGE, IMAGE),)


def alexnet() -> Built:
    """AlexNet in its version of one column (Krizhevsky 2014), 128 images."""
    widths = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1)]
    layers: list[nn.Module] = []
    for number, (had, made, size, stride, padding) in enumerate(widths):
        layers += [nn.Conv2d(had, made, size, stride, padding), nn.ReLU()]
        layers += [nn.MaxPool2d(3, 2)] if number in (0, 1, 4) else []
    layers += [nn.Flatten(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, CLASSES)).eval(), (torch.randn(128, 3, IMAGE, IMAGE),)


def vgg16() -> Built:
    """The convolutions of VGG16, 4 images."""
    layers: list[nn.Module] = []
    had = 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512):
        layers += [nn.Conv2d(had, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        had = width or had
    return nn.Sequential(*layers).eval(), (torch.randn(4, 3, IMAGE, IMAGE),)


def _attend_contiguous(_: nn.Module, q: Tensor, k: Tensor, v: Tensor, *__: Any, scaling: float, **___: Any) -> Any:
    """Attend as older versions of transformers did where there is a mask: with copies of all three."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
    return y.transpose(1, 2).contiguous(), None


def _attend_in_batches(_: nn.Module, q: Tensor, k: Tensor, v: Tensor, *__: Any, scaling: float, **___: Any) -> Any:
    """Attend as OWL-ViT in older versions of transformers did: with products of batches of heads, and stored scores."""
    batch, heads, length, size = q.shape
    q, k, v = ((one * by).contiguous().view(-1, length, size) for one, by in ((q, scaling), (k, 1), (v, 1)))
    y = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
    return y.view(batch, heads, length, size).transpose(1, 2), None


def vit_base() -> Built:
    """ViT-B/16, 4 images."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=2)).eval(), (torch.randn(4, 3, IMAGE, IMAGE),)


def timesformer() -> Built:
    """TimeSformer-B for 8 frames, one clip of 128."""
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    model = TimesformerForVideoClassification(TimesformerConfig(num_labels=400)).eval()
    return model, (torch.randn(1, 128, 3, IMAGE, IMAGE),)


def owlv2_large() -> Built:
    """OWLv2-L/14, an image of 1008 and a query."""
    from transformers import Owlv2Config, Owlv2ForObjectDetection
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    image = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    ALL_ATTENTION_FUNCTIONS.register("in_batches", _attend_in_batches)
    config = Owlv2Config(
        text_config=text, vision_config={**image, "image_size": 1008, "patch_size": 14}, projection_dim=768
    )
    config._attn_implementation = "in_batches"
    inputs = {"input_ids": _make_tokens(1, 5), "pixel_values": torch.randn(1, 3, 1008, 1008)}
    return Owlv2ForObjectDetection(config).eval(), (), inputs


def qwen() -> Built:
    """Qwen1.5-0.5B, 16 prompts of 559 tokens."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("contiguous", _attend_contiguous)
    config = Qwen2Config(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=16
    )
    config.use_cache, config._attn_implementation = False, "contiguous"
    return Qwen2ForCausalLM(config).eval(), (_make_tokens(16, 559),)


def bert_small() -> Built:
    """BERT of 4 layers and width 512, 141 tokens."""
    from transformers import BertConfig, BertLMHeadModel

    config = BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
    config.is_decoder = True
    return BertLMHeadModel(config).eval(), (_make_tokens(1, 141),)


def distilbert() -> Built:
    """DistilBERT, 8 sentences of 128 tokens."""
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(DistilBertConfig()).eval(), (_make_tokens(8, 128),)


def _make_tokens(batch: int, length: int) -> Tensor:
    return torch.ones(batch, length, dtype=torch.int64)
