from __future__ import annotations

import pytest

from frx_graph.analyzers.trace.kernel_names import (
    CONVERSIONS,
    KernelClass,
    classify_kernel,
    extract_function_name,
    is_compiled_copy,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "void nchwToNhwcKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>(int, float const*)",
            KernelClass.TO_CHANNELS_LAST,
        ),
        (
            "void cudnn::ops::nhwcToNchwKernel<float, float, float>(cudnn::ops::nhwc2nchw_params_t<float>)",
            KernelClass.FROM_CHANNELS_LAST,
        ),
        (
            "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, (bool)0>(nchw2nhwc_params_t<T3>)",
            KernelClass.TO_CHANNELS_LAST,
        ),
        ("void cudnn::ops::nchwToFoldedNhwcKernel<__half>(int)", KernelClass.TO_CHANNELS_LAST),
        ("nchw_to_nhwc_kernel(float*)", KernelClass.TO_CHANNELS_LAST),
        ("ncdhwToNdhwcKernel", KernelClass.TO_CHANNELS_LAST),
        ("nhwc2nchw", KernelClass.FROM_CHANNELS_LAST),
        ("batched_transpose_32x16_half.kd", KernelClass.TRANSPOSE),
        ("general_4d_reorder_1x256_dword_r0231", KernelClass.TRANSPOSE),
        ("transpose_NCHW2CNHW_V1_1D_WG_float", KernelClass.TRANSPOSE),
    ],
)
def test_conversion_kernels_of_the_libraries(name: str, expected: KernelClass) -> None:
    assert classify_kernel(name) is expected
    assert expected in CONVERSIONS


@pytest.mark.parametrize(
    "name",
    [
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4",
        "cudnn_infer_volta_scudnn_128x32_sliced1x4_ldg4_relu_exp_small_nhwc_tn_v1",
        "void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(float const*, long const*)",
        "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*, void const*, float, int, int)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 32, true, 1, true>(cudnnTensorStruct)",
        "void nhwcAddPaddingKernel<float>(int)",
        "void cudnn::ops::convertTensor_kernel<float, float, float, 0>(float, float const*, float, float*)",
        "SubTensorOpWithScalar1d",
        "void my_kernel(nchw2nhwc_params_t<float>)",
    ],
)
def test_kernels_that_work_on_a_layout_convert_nothing(name: str) -> None:
    assert classify_kernel(name) not in CONVERSIONS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
            "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>(int)",
            KernelClass.COPY,
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
            KernelClass.POINTWISE,
        ),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)", KernelClass.NORMALIZATION),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*)",
            KernelClass.NORMALIZATION,
        ),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)", KernelClass.REDUCTION),
        ("triton_per_fused_native_layer_norm_3", KernelClass.REDUCTION),
        ("triton_poi_fused_add_relu_0", KernelClass.POINTWISE),
        ("triton_poi_fused_permute_clone_12", KernelClass.COPY),
        ("volta_sgemm_64x64_nt", KernelClass.OTHER),
        ("", KernelClass.OTHER),
    ],
)
def test_other_classes(name: str, expected: KernelClass) -> None:
    assert classify_kernel(name) is expected


def test_fused_kernel_that_computes_is_not_a_compiled_copy() -> None:
    assert is_compiled_copy("triton_poi_fused_clone_0")
    assert not is_compiled_copy("triton_poi_fused_add_clone_0")
    assert not is_compiled_copy("triton_poi_fused_view_0")


def test_the_function_of_a_qualified_name() -> None:
    assert extract_function_name("void (anonymous namespace)::a::b<c::d>(e::f)") == "b"
