__global__ void scale(float* data, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    data[i] *= by;
}

__global__ void inside(float* data, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= by;
}

__global__ void stride(float* data, float by, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) data[i] *= by;
}

// Launched with what fits.
__global__ void exact(float* data, float by) {
    data[blockIdx.x * 256 + threadIdx.x] *= by;
}

void run(float* data, int count) {
    int blocks = (count + 255) / 256;
    scale<<<blocks, 256>>>(data, 2.0f, count);
    inside<<<blocks, 256>>>(data, 2.0f, count);
    stride<<<blocks, 256>>>(data, 2.0f, count);
    exact<<<64, 256>>>(data, 2.0f);
}
