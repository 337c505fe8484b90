__global__ void half(float* data, int n, bool twice) {
    __shared__ float part[256];
    part[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 128) {
        data[threadIdx.x] = part[threadIdx.x + 128];
    }
    // The same for all threads of a block.
    if (twice && blockIdx.x < n) {
        __syncthreads();
        data[threadIdx.x] += part[255 - threadIdx.x];
    }
}
