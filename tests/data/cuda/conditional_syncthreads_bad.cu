__global__ void half(float* data) {
    __shared__ float part[256];
    part[threadIdx.x] = data[threadIdx.x];
    if (threadIdx.x < 128) {
        __syncthreads();
        data[threadIdx.x] = part[threadIdx.x + 128];
    }
}
