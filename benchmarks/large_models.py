"""Two large models of transformers and diffusers, for advice that builds them without memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

TOKENS = 2048


def llama_70b() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a decoder of the size of Llama 3 70B (Grattafiori et al. 2024, table 3), and one prompt."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval(), (torch.randint(0, config.vocab_size, (1, TOKENS)),)


def sdxl_unet() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a U-Net of the size of SDXL's (Podell et al. 2023), and the inputs of one denoising step."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=128,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(320, 640, 1280),
        layers_per_block=2,
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
        use_linear_projection=True,
    )
    embeddings = {"text_embeds": torch.randn(2, 1280), "time_ids": torch.randn(2, 6)}
    args = (torch.randn(2, 4, 128, 128), torch.tensor(10.0), torch.randn(2, 77, 2048))
    return model.eval(), args, {"added_cond_kwargs": embeddings}
