__global__ void scale(float* data, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] *= by;
}

__global__ void fill(float* data, float with) {
    data[blockIdx.x * blockDim.x + threadIdx.x] = with;
}

void run(float* data, int count) {
    int threads = 256;
    int blocks = (count + threads - 1) / threads;
    fill<<<blocks, threads>>>(data, 0.0f);
}
