__global__ void total(const float* in, float* out) {
    __shared__ float part[32];
    float sum = in[blockIdx.x * 256 + threadIdx.x];
    for (int s = 16; s > 0; s >>= 1) sum += __shfl_down_sync(0xffffffff, sum, s);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int i = 1; i < 8; ++i) {
        if (threadIdx.x == 0) sum += part[i];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
