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
