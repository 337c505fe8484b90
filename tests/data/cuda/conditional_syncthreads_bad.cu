__global__ void half(float* data) {
    __shared__ float part[256];
    part[threadIdx.x] = data[threadIdx.x];
    if (threadIdx.x < 128) {
        __syncthreads();
        data[threadIdx.x] = part[threadIdx.x + 128];
    }
}

__global__ void going_on(float* data, int n, int rounds) {
    __shared__ float part[256];
    for (int i = 0; i < rounds; ++i) {
        if (blockIdx.x * 256 + threadIdx.x >= n) continue;
        part[threadIdx.x] = data[threadIdx.x];
        __syncthreads();
        data[threadIdx.x] = part[255 - threadIdx.x];
    }
}
