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
