__global__ void scale(const float* in, float* out, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = by * in[i];
}

__global__ void reverse(float* data, int turns) {
    __shared__ float part[256];
    for (int turn = 0; turn < turns; ++turn) {
        part[threadIdx.x] = data[threadIdx.x];
        __syncthreads();
        data[threadIdx.x] = part[255 - threadIdx.x];
        __syncthreads();
    }
}

// Threads of a block exchange through global memory.
__global__ void neighbours(float* data, float* out) {
    data[threadIdx.x] *= 2;
    __syncthreads();
    out[threadIdx.x] = data[255 - threadIdx.x];
}
