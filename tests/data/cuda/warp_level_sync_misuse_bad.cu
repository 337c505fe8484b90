__global__ void ends(float* data) {
    __shared__ volatile float part[64];
    part[threadIdx.x] = data[threadIdx.x];
    float left = part[threadIdx.x + 1];
    data[threadIdx.x] = left;
}

__global__ void few(float* data) {
    float value = data[threadIdx.x];
    if (threadIdx.x < 20) {
        value += __shfl_down_sync(0xffffffff, value, 1);
    }
    data[threadIdx.x] = value;
}

#define EVERY_LANE 0xffffffff
__global__ void the_last(float* data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = __shfl_xor_sync(EVERY_LANE, data[i], 1);
}

__global__ void in_global_memory(float* data) {
    if (threadIdx.x < 32) {
        volatile float* seen = data;
        seen[threadIdx.x] += seen[threadIdx.x + 16];
        seen[threadIdx.x] += seen[threadIdx.x + 8];
    }
}
