__global__ void ends(float* data) {
    __shared__ float part[64];
    part[threadIdx.x] = data[threadIdx.x];
    __syncwarp();
    float left = part[threadIdx.x + 1];
    data[threadIdx.x] = left;
}

__global__ void few(float* data) {
    float value = data[threadIdx.x];
    float next = __shfl_down_sync(0xffffffff, value, 1);
    if (threadIdx.x < 20) value += next;
    // Whole warps.
    if (threadIdx.x < 64) value += __shfl_xor_sync(0xffffffff, value, 1);
    if (threadIdx.x / 32 == 0) value += __shfl_xor_sync(0xffffffff, value, 2);
    data[threadIdx.x] = value;
}

__global__ void either(float* data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = i < n ? data[i] : 0.0f;
#ifdef OF_ANOTHER_MAKER
    value += __shfl_xor(value, 1);
#else
    value += __shfl_xor_sync(0xffffffff, value, 1);
#endif
    if (i >= n) return;
    data[i] = value;
}
